"""The properties of a namespace, as the manifest's table metadata holds them (format: Metadata).

`schema` and `partition_spec_v<N>` are the format's. Those that start with `phalanx.` are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from phalanx.errors import InvalidSpec, NotPartitioned, PhalanxError
from phalanx.model.evolution import check_specs
from phalanx.model.schema import Schema
from phalanx.model.spec import PartitionSpec

SCHEMA = "schema"
MODE = "phalanx.mode"
SALT = "phalanx.salt"
# Changed with every change of the others: of two concurrent changes one is refused.
EPOCH = "phalanx.epoch"
# A schema change that may not have reached every leaf yet.
PENDING = "phalanx.pending"
# A namespace in weak mode that is in strong mode until a move of its rows is over.
RETURNS = "phalanx.returns"
# Stock clients read a manifest with this flag, and refuse to write it.
WRITER_FLAG = {"lance.namespace.manifest.writer_feature_flags": str(1 << 62)}
_MODES = ("weak", "strong")
_SPEC = re.compile(r"partition_spec_v(\d+)")


@dataclass(frozen=True, slots=True)
class Properties:
    """What the namespace is: its schema, its specs, and how it is written."""

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    mode: str
    salt: str
    epoch: int
    pending: str | None
    returns: bool = False

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self.specs[max(self.specs)]

    def to_metadata(self) -> dict[str, str]:
        """The table metadata that says the same."""
        specs = {spec_key(number): spec.to_json() for number, spec in self.specs.items()}
        return {
            **specs,
            SCHEMA: self.schema.to_json(),
            MODE: self.mode,
            SALT: self.salt,
            EPOCH: str(self.epoch),
            PENDING: self.pending or "",
            RETURNS: "weak" if self.returns else "",
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
    specs = {}
    for number, text in sorted(found.items()):
        try:
            specs[number] = _spec(text)
        except InvalidSpec as error:
            raise InvalidSpec(f"{spec_key(number)} of {root} cannot be read. {error}") from None
    check_specs(specs)
    mode, epoch = metadata.get(MODE) or "weak", metadata.get(EPOCH) or "0"
    if mode not in _MODES:
        raise PhalanxError(
            f"{root} has the {MODE} {mode!r}: expected {' or '.join(_MODES)}. A newer version of "
            "Phalanx may have written it."
        )
    if not epoch.isdecimal():
        raise PhalanxError(f"{root} has the {EPOCH} {epoch!r}: expected a number. Restore it.")
    return Properties(
        schema=_schema(metadata[SCHEMA]),
        specs=specs,
        mode=mode,
        salt=metadata.get(SALT, ""),
        epoch=int(epoch),
        pending=metadata.get(PENDING) or None,
        returns=bool(metadata.get(RETURNS)),
    )


@lru_cache(maxsize=256)
def _spec(text: str) -> PartitionSpec:
    return PartitionSpec.from_json(text)


@lru_cache(maxsize=256)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)
