"""How many operators stand in a row, told from the text alone.

DataFusion reads `a + b + c` as nested pairs. It ends the whole process when many thousands of
them exhaust its stack, so the text is looked at before DataFusion sees it.
"""

from __future__ import annotations

import re

MOST_JUNCTIONS = 5000
MOST_OPERATORS = 1000
_OPERATOR = r"[-+*/%|&^~<>=!]+|::|\b(?:not|is|in|like|ilike|between|similar)\b"
_JUNCTION = r"\b(?:and|or)\b"
_ANY_OPERATOR = re.compile(f"{_OPERATOR}|{_JUNCTION}", re.IGNORECASE)
_TOKENS = re.compile(
    r"""(?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)|(?P<mark>[(),\[\]]|\b(?:when|then|else)\b)"""
    rf"|(?P<junction>{_JUNCTION})|(?P<operator>{_OPERATOR})",
    re.IGNORECASE,
)


def has_endless_chain(text: str) -> bool:
    """Whether more AND and OR, or more other operators, follow each other than is bearable."""
    # Most texts are short, and long lists of values have few operators.
    if len(text) <= MOST_OPERATORS or len(_ANY_OPERATOR.findall(text)) <= MOST_OPERATORS:
        return False
    # At each level of parentheses: AND and OR so far, and other operators since the last of them.
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
        if junctions > MOST_JUNCTIONS or operators > MOST_OPERATORS:
            return True
    return False
