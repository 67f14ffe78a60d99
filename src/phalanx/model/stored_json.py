"""The only reader of JSON that a table stores.

Stored JSON is untrusted input. Duplicate keys, NaN and infinity, too deep nesting and values out of
range are refused, with an error that says what is wrong and where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from phalanx.errors import InvalidManifest, PhalanxError, format_value

# Deeper than any schema that can be written. Readers of the JSON recurse into it.
_MAX_DEPTH = 400
# Snapshot ids have at most 18 digits in the manifest's object ids.
_MAX_COUNT = 10**18 - 1
_LAST_YEAR = 9000


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement on a value: in words, and as a test."""

    expected: str
    is_met: Callable[[Any], bool]

    @property
    def or_null(self) -> Rule:
        """The same rule, but null is allowed too."""
        return Rule(f"{self.expected}, or null", lambda value: value is None or self.is_met(value))


def _is_integer_between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_zoned_time(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return False
    return moment.tzinfo is not None and moment.year <= _LAST_YEAR


COUNT = Rule("a whole number from 0 to 10^18 - 1", _is_integer_between(0, _MAX_COUNT))
LANCE_VERSION = Rule("a whole number from 0 to 2^64 - 1", _is_integer_between(0, 2**64 - 1))
INT = Rule("a whole number of 64 bits", _is_integer_between(-(2**63), 2**63 - 1))
TEXT = Rule("text", lambda value: isinstance(value, str))
ZONED_TIME = Rule("a time with its zone", _is_zoned_time)
OBJECT = Rule("an object", lambda value: isinstance(value, dict))


def text_rule(pattern: str, expected: str) -> Rule:
    """Return the rule that a value is text matching a pattern."""
    form = re.compile(pattern)
    return Rule(
        expected, lambda value: isinstance(value, str) and form.fullmatch(value) is not None
    )


def parse_json(text: object, what: str, error: type[PhalanxError] = InvalidManifest) -> Any:
    """Parse a JSON text; `what` names it in the error."""
    if not isinstance(text, str):
        _refuse(what, text, "expected JSON", error)
    try:
        found = json.loads(
            text, object_pairs_hook=_check_unique_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as failure:
        _refuse(what, text, f"expected JSON ({failure})", error)
    # Count brackets first: it is cheaper than measuring the depth.
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_too_deep(found):
        _refuse(what, text, f"it is nested deeper than {_MAX_DEPTH} levels", error)
    return found


def read_object(
    text: object,
    what: str,
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] | None = None,
    *,
    closed: bool = False,
) -> dict[str, Any]:
    """Parse a JSON text to an object and check its values by the rules.

    A `closed` object must have no other keys: an older version of Phalanx must stop where a newer
    one has written keys that it does not know.
    """
    found = parse_json(text, what)
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
    """Raise `InvalidManifest` unless `found` is an object that satisfies the rules."""
    if not isinstance(found, dict):
        _refuse(what, found, "expected an object", InvalidManifest)
    for key, rule in required.items():
        if key not in found:
            _refuse(what, found, f"expected the key {key!r} in it", InvalidManifest)
        if not rule.is_met(found[key]):
            _refuse(what, found, _explain_mismatch(key, found[key], rule), InvalidManifest)
    for key, rule in (optional or {}).items():
        if key in found and not rule.is_met(found[key]):
            _refuse(what, found, _explain_mismatch(key, found[key], rule), InvalidManifest)
    if closed and (unknown := found.keys() - required.keys() - (optional or {}).keys()):
        _refuse(what, found, f"the key {min(unknown)!r} is not known", InvalidManifest)


def _explain_mismatch(key: str, value: object, rule: Rule) -> str:
    return f"{key} is {format_value(value)}, expected {rule.expected}"


def _refuse(what: str, text: object, why: str, error: type[PhalanxError]) -> NoReturn:
    raise error(
        f"Cannot read {what}: {why}. It is {format_value(text)}. A newer version of Phalanx may "
        "have written it, or it is damaged: restore it."
    )


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _is_too_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            return True
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return False
