"""Marks of commits to a leaf's main branch, which distinguish Phalanx's commits from others.

A commit to a main branch does not check the mode: a weak writer may commit just after the table
changed to strong mode. The mark shows that its commit is late, and not of another program.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import lance

from phalanx.storage.state.properties import Properties

MarkKind: TypeAlias = Literal["weak", "main"]
# The transaction property in which Lance stores the commit message.
_MESSAGE = "__lance_commit_message"
_FORM = re.compile(r"phalanx (weak|main) ([0-9a-f]{16}) ([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Mark:
    """The author of a commit: a weak writer ("weak"), or the publishing of strong commits ("main").

    `table` identifies the namespace: another one may list the same leaf, and its commits are
    foreign.
    """

    kind: MarkKind
    table: str
    epoch: int

    @classmethod
    def of(cls, kind: MarkKind, properties: Properties) -> Mark:
        """Return the mark of commits made under these properties."""
        table = hashlib.blake2b(properties.salt.encode(), digest_size=8).hexdigest()
        return cls(kind, table, properties.epoch)

    def __str__(self) -> str:
        return f"phalanx {self.kind} {self.table} {self.epoch}"


def read_mark(dataset: lance.LanceDataset, version: int) -> Mark | None:
    """Return the mark of the commit that created a version; None if it has none."""
    transaction = dataset.read_transaction(version)
    properties = None if transaction is None else transaction.transaction_properties
    found = _FORM.fullmatch((properties or {}).get(_MESSAGE, ""))
    if found is None:
        return None
    kind: MarkKind = "weak" if found[1] == "weak" else "main"
    return Mark(kind, found[2], int(found[3]))
