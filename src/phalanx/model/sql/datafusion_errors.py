"""DataFusion's errors as one plain sentence each."""

from __future__ import annotations

import re

# What Python's stack takes when several functions recurse into an expression.
MOST_LEVELS = 128
TOO_DEEP = f"it has more than {MOST_LEVELS} levels of operators or calls. Write it in fewer"
_NO_SUCH_FUNCTION = re.compile(r"No function matches the given name and argument types ('.*?')")
_PLAINER = {
    r"Cannot infer common argument type for comparison operation (.+) [!<>=]+ (.+)": (
        r"\1 and \2 cannot be compared"
    ),
    r"^RecursionLimitExceeded$": TOO_DEEP,
    # The only panic known: DataFusion moves a cast off a column whose scale is below zero.
    r"^attempt to divide by zero$": (
        "a decimal column of negative scale compares only with constants of its own type, "
        "as arrow_cast(500, 'Decimal128(5, -2)')"
    ),
    r"found: EOF": "found: the end of the text",
    r"error computing timezone offset": "the column's zone has no such local time, or has it twice",
    r"Invalid function '(year|month|day|hour)'\.?": r"\1 is written date_part('\1', …) in SQL",
}


def sentence(error: BaseException) -> str:
    """The innermost reason DataFusion gives, without its chain of causes and its hints."""
    message = str(error).strip().split("\ncaused by\n")[-1].strip()
    if (misfit := _NO_SUCH_FUNCTION.search(message)) is not None:
        return f"No function matches {misfit[1]}"
    first, *rest = message.splitlines()
    message = " ".join([first, *rest]) if first.endswith(":") else first
    message = re.sub(r"__row_\d+__\.|, metadata: \{[^}]*\}", "", message)
    message = re.sub(r"^(?:(?:DataFusion|[A-Z]\w*) error: |Error during planning: )+", "", message)
    message = re.sub(r'^(?:Parser|Tokenizer)Error\("(.*)"\)$', r"\1", message)
    for pattern, plain in _PLAINER.items():
        message = re.sub(pattern, plain, message)
    return message
