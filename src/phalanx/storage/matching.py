"""Which rows of two batches have equal keys, as DataFusion finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datafusion import SessionConfig, SessionContext

from phalanx.model.schema.rows import one_batch
from phalanx.storage.streams.hash_join import JoinRows

Places: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
_ROW = ".row"
_ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are held, which of them have met a partner, and DataFusion's view of their keys."""

    rows: pa.RecordBatch
    met: Flags
    keys: tuple[str, ...]
    session: SessionContext

    @classmethod
    def of(cls, batches: list[pa.RecordBatch], side: JoinRows) -> Block:
        """The batches as a block; the list is emptied, so that they are not held twice."""
        rows = one_batch(batches, side.schema)
        batches.clear()
        session = SessionContext(
            SessionConfig(
                {
                    "datafusion.execution.target_partitions": "1",
                    "datafusion.execution.batch_size": str(_ROWS_AT_ONCE),
                }
            )
        )
        block = cls(rows, np.zeros(rows.num_rows, dtype=bool), tuple(side.keys), session)
        session.register_record_batches("held", [[block._numbered(rows)]])
        return block

    def pairs_with(self, chunk: pa.RecordBatch) -> Iterator[tuple[Places, Places]]:
        """The places of held rows and of rows of a chunk that have equal keys."""
        found = self._asked(
            f'SELECT held."{_ROW}", other."{_ROW}" FROM held JOIN other ON {self._equal}', chunk
        )
        return ((mine, theirs) for mine, theirs in found)

    def met_in(self, chunk: pa.RecordBatch) -> Iterator[Places]:
        """The places of rows of a chunk that have a partner here."""
        return self._with_partner("other", "held", chunk)

    def met_by(self, chunk: pa.RecordBatch) -> Iterator[Places]:
        """The places of held rows that have a partner in a chunk."""
        return self._with_partner("held", "other", chunk)

    def _with_partner(self, kept: str, seen: str, chunk: pa.RecordBatch) -> Iterator[Places]:
        # DataFusion looks at all pairs, of which a key that many rows share would have too many.
        keys = ", ".join(f'"{key}"' for key in self.keys)
        found = self._asked(
            f'SELECT {kept}."{_ROW}" FROM {kept} '
            f"LEFT SEMI JOIN (SELECT DISTINCT {keys} FROM {seen}) AS {seen} ON {self._equal}",
            chunk,
        )
        return (places for (places,) in found)

    @property
    def _equal(self) -> str:
        return " AND ".join(f'held."{key}" = other."{key}"' for key in self.keys)

    def _asked(self, query: str, chunk: pa.RecordBatch) -> Iterator[tuple[Places, ...]]:
        self.session.register_record_batches("other", [[self._numbered(chunk)]])
        try:
            for batch in self.session.sql(query).execute_stream():
                yield tuple(column.to_numpy() for column in batch.to_pyarrow().columns)
        finally:
            self.session.deregister_table("other")

    def _numbered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The keys of the rows, and their places."""
        places = pa.array(np.arange(rows.num_rows, dtype=np.int64))
        return pa.RecordBatch.from_arrays(
            [*(rows.column(key) for key in self.keys), places], names=[*self.keys, _ROW]
        )
