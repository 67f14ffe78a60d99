"""JSON that a table stores: the one place where it is read.

Whoever wrote it, it is data: keys that come twice, numbers that are none, nesting without end and
values outside of their range are refused, and what is wrong is told with where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from phalanx.errors import InvalidManifest, PhalanxError, shown

# Deeper than any schema that can be written; what reads it goes down by calls of its own.
_DEEPEST = 400
# Numbers of snapshots have up to so many digits in the manifest's ids.
_MOST = 10**18 - 1
_LAST_YEAR = 9000


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, in words and as a test."""

    expected: str
    holds: Callable[[Any], bool]

    @property
    def or_null(self) -> Rule:
        """The same, or null."""
        return Rule(f"{self.expected}, or null", lambda value: value is None or self.holds(value))


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_moment(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment.year <= _LAST_YEAR


COUNT = Rule("a whole number from 0 to 10^18 - 1", _whole(0, _MOST))
VERSION = Rule("a whole number from 0 to 2^64 - 1", _whole(0, 2**64 - 1))
INT = Rule("a whole number of 64 bits", _whole(-(2**63), 2**63 - 1))
TEXT = Rule("text", lambda value: isinstance(value, str))
MOMENT = Rule("a time with its zone", _is_moment)
OBJECT = Rule("an object", lambda value: isinstance(value, dict))


def matching(pattern: str, expected: str) -> Rule:
    """Text of a form."""
    form = re.compile(pattern)
    return Rule(
        expected, lambda value: isinstance(value, str) and form.fullmatch(value) is not None
    )


def parse(text: object, what: str, error: type[PhalanxError] = InvalidManifest) -> Any:
    """The value that a JSON text stands for."""
    if not isinstance(text, str):
        _refuse(what, text, "expected JSON", error)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as failure:
        _refuse(what, text, f"expected JSON ({failure})", error)
    # So many brackets are needed to be that deep.
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(found):
        _refuse(what, text, f"it is nested deeper than {_DEEPEST} levels", error)
    return found


def read_object(
    text: object,
    what: str,
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] | None = None,
    *,
    closed: bool = False,
) -> dict[str, Any]:
    """The object that a JSON text stands for, with values as the rules say.

    Of a `closed` object other keys are refused: an older version must not go on where a newer one
    has written what it does not know.
    """
    found = parse(text, what)
    check_object(found, what, required, optional, closed=closed)
    checked: dict[str, Any] = found
    return checked


def check_object(
    found: object,
    what: str,
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] | None = None,
    *,
    closed: bool = False,
) -> None:
    """Refuse what is no such object."""
    if not isinstance(found, dict):
        _refuse(what, found, "expected an object", InvalidManifest)
    for key, rule in required.items():
        if key not in found:
            _refuse(what, found, f"expected the key {key!r} in it", InvalidManifest)
        if not rule.holds(found[key]):
            _refuse(what, found, _unmet(key, found[key], rule), InvalidManifest)
    for key, rule in (optional or {}).items():
        if key in found and not rule.holds(found[key]):
            _refuse(what, found, _unmet(key, found[key], rule), InvalidManifest)
    if closed and (unknown := found.keys() - required.keys() - (optional or {}).keys()):
        _refuse(what, found, f"the key {min(unknown)!r} is not known", InvalidManifest)


def _unmet(key: str, value: object, rule: Rule) -> str:
    return f"{key} is {shown(value)}, expected {rule.expected}"


def _refuse(what: str, text: object, why: str, error: type[PhalanxError]) -> NoReturn:
    raise error(
        f"Cannot read {what}: {why}. It is {shown(text)}. A newer version of Phalanx may have "
        "written it, or it is damaged: restore it."
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} comes twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            return True
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return False
