"""The properties of a namespace, stored in the manifest's table metadata (format: Metadata).

The format defines `schema` and `partition_spec_v<N>`. Phalanx defines those that start with
`phalanx.`; docs/FORMAT.md describes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phalanx.errors import InvalidManifest, InvalidSpec, NotPartitioned
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import IndexSpec, indexes_from_json, indexes_to_json
from phalanx.model.specs import expression_draft
from phalanx.model.specs.evolution import check_specs
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.stored_json import TEXT, read_object

SCHEMA_PROPERTY = "schema"
# The version of what Phalanx stores beyond the format (docs/FORMAT.md). Tables without it have 1.
FORMAT_PROPERTY = "phalanx.format"
FORMAT_NUMBER = 1
MODE = "phalanx.mode"
SALT = "phalanx.salt"
# Changes with every property change, so that one of two concurrent changes is refused.
EPOCH = "phalanx.epoch"
# A schema change that some leaves may not have yet.
PENDING = "phalanx.pending"
# Set on a weak namespace that is in strong mode until a move of its rows ends.
RETURNS = "phalanx.returns"
# The indexes that every leaf should have.
INDEXES = "phalanx.indexes"
# The algorithm of the table's checksums, if they are enabled.
CHECKSUMS = "phalanx.checksums"
_SHA256 = "sha256"
# Stock clients read a manifest with this flag but refuse to write it.
WRITER_FLAG = {"lance.namespace.manifest.writer_feature_flags": str(1 << 62)}
_MODES = ("weak", "strong")
_SALT = re.compile(r"[0-9a-f]{32}")
# The value of `pending` while a strong namespace becomes weak.
LEAVING_STRONG = {"change": "set_mode", "mode": "weak"}
# The current format, and the earlier draft in which every partition field is an expression.
NAMESPACE_LAYOUT, EXPRESSIONS_LAYOUT = "namespace", "expressions"
_SPEC = re.compile(r"partition_spec_v([0-9]{1,9})")
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Properties:
    """The schema and the specs of a namespace, and how it is written."""

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    mode: str
    salt: str
    epoch: int
    pending: str | None
    layout: str = NAMESPACE_LAYOUT
    returns_to_weak: bool = False
    indexes: tuple[IndexSpec, ...] = ()
    checksums: bool = False

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self.specs[max(self.specs)]

    @property
    def pending_change(self) -> Mapping[str, Any] | None:
        """The change that some leaves may not have yet, with its arguments."""
        return None if self.pending is None else _parse_pending(self.pending)

    @property
    def is_leaving_strong(self) -> bool:
        """Whether a change from strong to weak mode is under way."""
        return self.pending_change == LEAVING_STRONG

    @property
    def has_expression_specs(self) -> bool:
        """Whether specs are stored as arrays of expressions, as in the older draft."""
        return self.layout == EXPRESSIONS_LAYOUT

    def to_metadata(self) -> dict[str, str]:
        """Return the properties as table metadata."""
        serialize = (
            expression_draft.spec_to_draft_json
            if self.has_expression_specs
            else PartitionSpec.to_json
        )
        specs = {spec_key(number): serialize(spec) for number, spec in self.specs.items()}
        return {
            **specs,
            SCHEMA_PROPERTY: self.schema.to_json(),
            FORMAT_PROPERTY: str(FORMAT_NUMBER),
            MODE: self.mode,
            SALT: self.salt,
            EPOCH: str(self.epoch),
            PENDING: self.pending or "",
            RETURNS: "weak" if self.returns_to_weak else "",
            INDEXES: indexes_to_json(self.indexes),
            CHECKSUMS: _SHA256 if self.checksums else "",
        }


def spec_key(number: int) -> str:
    """Return the key of a spec version."""
    return f"partition_spec_v{number}"


def format_properties(metadata: Mapping[str, str]) -> dict[str, str]:
    """Select the properties that the format defines, unparsed."""
    return {
        key: text
        for key, text in metadata.items()
        if key == SCHEMA_PROPERTY or _SPEC.fullmatch(key)
    }


def parse_properties(metadata: Mapping[str, str], root: str) -> Properties:
    """Parse a manifest's table metadata; errors name what is missing or corrupt."""
    _check_format(metadata.get(FORMAT_PROPERTY) or str(FORMAT_NUMBER), root)
    found = {
        int(match[1]): text for key, text in metadata.items() if (match := _SPEC.fullmatch(key))
    }
    if not found:
        raise NotPartitioned(
            f"{root} is a directory namespace without partition specs: expected "
            "partition_spec_v1 among its properties. Create a partitioned namespace elsewhere."
        )
    if SCHEMA_PROPERTY not in metadata:
        raise NotPartitioned(
            f"{root} has partition specs but no schema among its properties: it was not created "
            "completely. Create it again elsewhere."
        )
    is_draft = {expression_draft.is_draft_json(text) for text in found.values()}
    if len(is_draft) > 1:
        raise InvalidSpec(
            f"{root} has specs of two formats: some are arrays of expressions, some are objects. "
            "Restore those that were modified outside Phalanx."
        )
    layout = EXPRESSIONS_LAYOUT if is_draft == {True} else NAMESPACE_LAYOUT
    specs = {}
    for number, text in sorted(found.items()):
        try:
            specs[number] = _parse_spec(number, text, layout)
        except InvalidSpec as error:
            raise InvalidSpec(f"{spec_key(number)} of {root} cannot be read. {error}") from None
    check_specs(specs)
    mode, epoch = metadata.get(MODE) or "weak", metadata.get(EPOCH) or "0"
    if mode not in _MODES:
        raise InvalidManifest(
            f"{root} has the {MODE} {mode!r}: expected {' or '.join(_MODES)}. A newer version of "
            "Phalanx may have written it."
        )
    if not (epoch.isascii() and epoch.isdecimal() and len(epoch) <= _MAX_DIGITS):
        raise InvalidManifest(f"{root} has the {EPOCH} {epoch!r}: expected a number. Restore it.")
    salt, pending = metadata.get(SALT, ""), metadata.get(PENDING) or None
    if salt and not _SALT.fullmatch(salt):
        raise InvalidManifest(
            f"{root} has the {SALT} {salt!r}: expected 32 hexadecimal digits. Restore it."
        )
    if pending is not None:
        _parse_pending(pending)
    return Properties(
        schema=_parse_schema(metadata[SCHEMA_PROPERTY]),
        specs=specs,
        mode=mode,
        salt=salt,
        epoch=int(epoch),
        pending=pending,
        layout=layout,
        returns_to_weak=_parse_switch(metadata, RETURNS, "weak", root),
        indexes=indexes_from_json(metadata.get(INDEXES) or "", root),
        checksums=_parse_switch(metadata, CHECKSUMS, _SHA256, root),
    )


def _parse_switch(metadata: Mapping[str, str], key: str, on: str, root: str) -> bool:
    """Return whether a property that is `on` or empty is on."""
    value = metadata.get(key) or ""
    if value not in ("", on):
        raise InvalidManifest(
            f"{root} has the {key} {value!r}: expected {on!r}, or nothing. A newer version of "
            "Phalanx may have written it."
        )
    return bool(value)


@lru_cache(maxsize=256)
def _parse_pending(text: str) -> dict[str, Any]:
    what = f"the change of the table that is under way (its property {PENDING})"
    return read_object(text, what, {}, {"change": TEXT})


def _check_format(number: str, root: str) -> None:
    if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS) or (
        int(number) < 1
    ):
        raise InvalidManifest(
            f"{root} has the {FORMAT_PROPERTY} {number!r}: expected a number of at least 1. "
            "Restore it."
        )
    if int(number) > FORMAT_NUMBER:
        raise InvalidManifest(
            f"{root} has the {FORMAT_PROPERTY} {number}: expected at most {FORMAT_NUMBER}. A newer "
            "version of Phalanx wrote it. Upgrade the package phalanx-lance to read it."
        )


@lru_cache(maxsize=256)
def _parse_spec(number: int, text: str, layout: str) -> PartitionSpec:
    if layout == EXPRESSIONS_LAYOUT:
        return expression_draft.spec_from_draft_json(number, text)
    return PartitionSpec.from_json(text)


@lru_cache(maxsize=256)
def _parse_schema(text: str) -> Schema:
    return Schema.from_json(text)
