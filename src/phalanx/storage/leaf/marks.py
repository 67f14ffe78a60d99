"""What commits to a leaf's main branch carry, so that Phalanx knows its own among a stranger's.

A main branch has no fence: a weak writer may commit to one just after the table went to strong
mode, and a slow `Restore` may come just after it left strong mode. The epoch of the properties
that a writer knew tells which of the two is late.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import lance

from phalanx.storage.state.properties import Properties

Kind: TypeAlias = Literal["weak", "main"]
# Where Lance keeps the message of a commit.
_MESSAGE = "__lance_commit_message"
_FORM = re.compile(r"phalanx (weak|main) ([0-9a-f]{16}) ([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Mark:
    """Who made a commit: a weak writer, or what brings main branches along ("main").

    `table` names the namespace: a leaf may be listed by a second one, whose commits are foreign.
    """

    kind: Kind
    table: str
    epoch: int

    @classmethod
    def of(cls, kind: Kind, properties: Properties) -> Mark:
        """The mark of a commit that is made under these properties."""
        table = hashlib.blake2b(properties.salt.encode(), digest_size=8).hexdigest()
        return cls(kind, table, properties.epoch)

    def __str__(self) -> str:
        return f"phalanx {self.kind} {self.table} {self.epoch}"


def mark_of(dataset: lance.LanceDataset, version: int) -> Mark | None:
    """The mark of the commit that made a version, if it has one."""
    transaction = dataset.read_transaction(version)
    properties = None if transaction is None else transaction.transaction_properties
    found = _FORM.fullmatch((properties or {}).get(_MESSAGE, ""))
    if found is None:
        return None
    kind: Kind = "weak" if found[1] == "weak" else "main"
    return Mark(kind, found[2], int(found[3]))
