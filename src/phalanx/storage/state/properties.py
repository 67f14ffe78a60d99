"""The properties of a namespace, as the manifest's table metadata holds them (format: Metadata).

`schema` and `partition_spec_v<N>` are the format's. Those that start with `phalanx.` are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from phalanx.errors import InvalidManifest, InvalidSpec, NotPartitioned
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import IndexSpec, indexes_from_json, indexes_to_json
from phalanx.model.specs import expression_draft as expression_specs
from phalanx.model.specs.evolution import check_specs
from phalanx.model.specs.spec import PartitionSpec

SCHEMA = "schema"
MODE = "phalanx.mode"
SALT = "phalanx.salt"
# Changed with every change of the others: of two concurrent changes one is refused.
EPOCH = "phalanx.epoch"
# A schema change that may not have reached every leaf yet.
PENDING = "phalanx.pending"
# A namespace in weak mode that is in strong mode until a move of its rows is over.
RETURNS = "phalanx.returns"
# The indexes that every leaf should have.
INDEXES = "phalanx.indexes"
# How the files of the table are checked, if they are.
CHECKSUMS = "phalanx.checksums"
_SHA256 = "sha256"
# Stock clients read a manifest with this flag, and refuse to write it.
WRITER_FLAG = {"lance.namespace.manifest.writer_feature_flags": str(1 << 62)}
_MODES = ("weak", "strong")
# The newest format, and the draft before it in which every partition field is an expression.
NAMESPACE, EXPRESSIONS = "namespace", "expressions"
_SPEC = re.compile(r"partition_spec_v([0-9]{1,9})")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Properties:
    """What the namespace is: its schema, its specs, and how it is written."""

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    mode: str
    salt: str
    epoch: int
    pending: str | None
    layout: str = NAMESPACE
    returns: bool = False
    indexes: tuple[IndexSpec, ...] = ()
    checksums: bool = False

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self.specs[max(self.specs)]

    @property
    def is_drafted(self) -> bool:
        """Whether it is stored as the expression draft says."""
        return self.layout == EXPRESSIONS

    def to_metadata(self) -> dict[str, str]:
        """The table metadata that says the same."""
        written = expression_specs.to_array if self.is_drafted else PartitionSpec.to_json
        specs = {spec_key(number): written(spec) for number, spec in self.specs.items()}
        return {
            **specs,
            SCHEMA: self.schema.to_json(),
            MODE: self.mode,
            SALT: self.salt,
            EPOCH: str(self.epoch),
            PENDING: self.pending or "",
            RETURNS: "weak" if self.returns else "",
            INDEXES: indexes_to_json(self.indexes),
            CHECKSUMS: _SHA256 if self.checksums else "",
        }


def spec_key(number: int) -> str:
    """The key that a spec version is stored under."""
    return f"partition_spec_v{number}"


def format_properties(metadata: Mapping[str, str]) -> dict[str, str]:
    """The properties that the format defines, as they are written."""
    return {key: text for key, text in metadata.items() if key == SCHEMA or _SPEC.fullmatch(key)}


def properties_of(metadata: Mapping[str, str], root: str) -> Properties:
    """The properties in a manifest's table metadata; says what is missing or corrupt."""
    found = {
        int(match[1]): text for key, text in metadata.items() if (match := _SPEC.fullmatch(key))
    }
    if not found:
        raise NotPartitioned(
            f"{root} is a directory namespace without partition specs: expected "
            "partition_spec_v1 among its properties. Create a partitioned namespace elsewhere."
        )
    if SCHEMA not in metadata:
        raise NotPartitioned(
            f"{root} has partition specs but no schema among its properties: it was not created "
            "completely. Create it again elsewhere."
        )
    drafted = {expression_specs.is_array(text) for text in found.values()}
    if len(drafted) > 1:
        raise InvalidSpec(
            f"{root} has specs of two formats: some are arrays of expressions, some are objects. "
            "Restore those that something else has written."
        )
    layout = EXPRESSIONS if drafted == {True} else NAMESPACE
    specs = {}
    for number, text in sorted(found.items()):
        try:
            specs[number] = _spec(number, text, layout)
        except InvalidSpec as error:
            raise InvalidSpec(f"{spec_key(number)} of {root} cannot be read. {error}") from None
    check_specs(specs)
    mode, epoch = metadata.get(MODE) or "weak", metadata.get(EPOCH) or "0"
    if mode not in _MODES:
        raise InvalidManifest(
            f"{root} has the {MODE} {mode!r}: expected {' or '.join(_MODES)}. A newer version of "
            "Phalanx may have written it."
        )
    if not (epoch.isascii() and epoch.isdecimal() and len(epoch) <= _MOST_DIGITS):
        raise InvalidManifest(f"{root} has the {EPOCH} {epoch!r}: expected a number. Restore it.")
    return Properties(
        schema=_schema(metadata[SCHEMA]),
        specs=specs,
        mode=mode,
        salt=metadata.get(SALT, ""),
        epoch=int(epoch),
        pending=metadata.get(PENDING) or None,
        layout=layout,
        returns=bool(metadata.get(RETURNS)),
        indexes=indexes_from_json(metadata.get(INDEXES) or "", root),
        checksums=bool(metadata.get(CHECKSUMS)),
    )


@lru_cache(maxsize=256)
def _spec(number: int, text: str, layout: str) -> PartitionSpec:
    if layout == EXPRESSIONS:
        return expression_specs.from_array(number, text)
    return PartitionSpec.from_json(text)


@lru_cache(maxsize=256)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)
