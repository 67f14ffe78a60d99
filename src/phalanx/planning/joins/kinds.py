"""The kinds of join and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from phalanx.arguments import JoinHow
from phalanx.errors import InvalidArgument

# The right rows without a partner, which complete a left join to a full join.
JoinKind: TypeAlias = JoinHow | Literal["right_anti"]
JOIN_HOWS: tuple[JoinHow, ...] = get_args(JoinHow)
_ALIASES: dict[str, JoinHow] = {
    **{name: name for name in JOIN_HOWS},
    **dict.fromkeys(("leftouter", "left_outer"), "left"),
    **dict.fromkeys(("rightouter", "right_outer"), "right"),
    **dict.fromkeys(("outer", "fullouter", "full_outer"), "full"),
    **dict.fromkeys(("leftsemi", "left_semi"), "semi"),
    **dict.fromkeys(("leftanti", "left_anti"), "anti"),
}


def parse_how(text: str) -> JoinHow:
    """Return the kind of join for one of Spark's names."""
    found = _ALIASES.get(text.lower()) if isinstance(text, str) else None
    if found is None:
        raise InvalidArgument(
            f"Cannot join with how={text!r}: expected one of {', '.join(JOIN_HOWS)}."
        )
    return found


def can_produce_rows(kind: JoinKind, left: Sequence[object], right: Sequence[object]) -> bool:
    """Return whether a join of these leaves can produce rows."""
    match kind:
        case "inner" | "semi":
            return bool(left) and bool(right)
        case "left" | "anti":
            return bool(left)
        case "right" | "right_anti":
            return bool(right)
        case "full":
            return bool(left) or bool(right)
