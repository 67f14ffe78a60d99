"""Limits on the length and depth of an expression.

DataFusion parses `a + b + c` as nested pairs. Many thousands of them exhaust its stack and end the
whole process, so the text is checked before DataFusion parses it.
"""

from __future__ import annotations

import re

# Python's stack allows this depth when several functions recurse into an expression.
MAX_DEPTH = 128
TOO_DEEP = f"it has more than {MAX_DEPTH} levels of operators or calls. Write it in fewer"
# AND and OR, and other operators, in one chain.
MAX_JUNCTIONS = 5000
MAX_OPERATORS = 1000
_OPERATOR = r"[-+*/%|&^~<>=!]+|::|\b(?:not|is|in|like|ilike|between|similar)\b"
_JUNCTION = r"\b(?:and|or)\b"
_ANY_OPERATOR = re.compile(f"{_OPERATOR}|{_JUNCTION}", re.IGNORECASE)
_TOKENS = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)|(?P<mark>[(),\[\]]|\b(?:when|then|else)\b)"""
    rf"|(?P<junction>{_JUNCTION})|(?P<operator>{_OPERATOR})",
    re.IGNORECASE,
)


def has_too_long_chain(text: str) -> bool:
    """Return whether a chain of AND and OR, or of other operators, exceeds its limit."""
    # Most texts are short, and long lists of values have few operators: check that first.
    if len(text) <= MAX_OPERATORS or len(_ANY_OPERATOR.findall(text)) <= MAX_OPERATORS:
        return False
    # Per level of parentheses: the ANDs and ORs so far, and other operators since the last one.
    levels = [(0, 0)]
    for token in _TOKENS.finditer(text):
        junctions, operators = levels[-1]
        match token.lastgroup, token[0]:
            case "junction", _:
                levels[-1] = (junctions + 1, 0)
            case "operator", _:
                levels[-1] = (junctions, operators + 1)
            case "mark", "(" | "[":
                levels.append((0, 0))
            case "mark", ")" | "]":
                levels = levels[:-1] or [(0, 0)]
            case "mark", _:
                levels[-1] = (0, 0)
        junctions, operators = levels[-1]
        if junctions > MAX_JUNCTIONS or operators > MAX_OPERATORS:
            return True
    return False
