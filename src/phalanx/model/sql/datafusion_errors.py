"""Translation of DataFusion's errors into one plain sentence each."""

from __future__ import annotations

import re

from phalanx.model.sql.limits import TOO_DEEP

_NO_SUCH_FUNCTION = re.compile(r"No function matches the given name and argument types ('.*?')")
_TRANSLATIONS = {
    r"Cannot infer common argument type for comparison operation (.+) [!<>=]+ (.+)": (
        r"\1 and \2 cannot be compared"
    ),
    r"^RecursionLimitExceeded$": TOO_DEEP,
    # The only known panic: DataFusion moves a cast off a decimal column of negative scale.
    r"^attempt to divide by zero$": (
        "a decimal column of negative scale can be compared only with constants of its own type, "
        "such as arrow_cast(500, 'Decimal128(5, -2)')"
    ),
    r"found: EOF": "found: the end of the text",
    r"error computing timezone offset": "the column's time zone skips or repeats this local time",
    r"Invalid function '(year|month|day|hour)'\.?": r"\1 is written date_part('\1', …) in SQL",
}


def explain_error(error: BaseException) -> str:
    """Return the innermost reason that DataFusion gives, without the chain of causes and hints."""
    message = str(error).strip().split("\ncaused by\n")[-1].strip()
    if (misfit := _NO_SUCH_FUNCTION.search(message)) is not None:
        return f"No function matches {misfit[1]}"
    first, *rest = message.splitlines()
    message = " ".join([first, *rest]) if first.endswith(":") else first
    message = re.sub(r"__row_\d+__\.|, metadata: \{[^}]*\}", "", message)
    message = re.sub(r"^(?:(?:DataFusion|[A-Z]\w*) error: |Error during planning: )+", "", message)
    message = re.sub(r'^(?:Parser|Tokenizer)Error\("(.*)"\)$', r"\1", message)
    for pattern, plain in _TRANSLATIONS.items():
        message = re.sub(pattern, plain, message)
    return message
