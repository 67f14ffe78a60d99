"""The kinds of join, and what each one keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from phalanx.errors import PhalanxError

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
# The right rows without a partner: what a left join lacks to be a full one.
Kind: TypeAlias = How | Literal["right_anti"]
HOWS: tuple[How, ...] = get_args(How)
_ALIASES: dict[str, How] = {
    **{name: name for name in HOWS},
    **dict.fromkeys(("leftouter", "left_outer"), "left"),
    **dict.fromkeys(("rightouter", "right_outer"), "right"),
    **dict.fromkeys(("outer", "fullouter", "full_outer"), "full"),
    **dict.fromkeys(("leftsemi", "left_semi"), "semi"),
    **dict.fromkeys(("leftanti", "left_anti"), "anti"),
}


def how_of(text: str) -> How:
    """The kind of join that a word of Spark's means."""
    found = _ALIASES.get(text.lower()) if isinstance(text, str) else None
    if found is None:
        raise PhalanxError(f"Cannot join with how={text!r}: expected one of {', '.join(HOWS)}.")
    return found


def can_give_rows(kind: Kind, left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether a join of these leaves can have a row in its result."""
    match kind:
        case "inner" | "semi":
            return bool(left) and bool(right)
        case "left" | "anti":
            return bool(left)
        case "right" | "right_anti":
            return bool(right)
        case "full":
            return bool(left) or bool(right)
