"""Two writers change the schema, the specs and the indexes: no change is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import CommitConflict
from phalanx.table import evolution as changes

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])
CHANGES: dict[str, Callable[[phalanx.Table], object]] = {
    "add": lambda table: table.add_column(pa.field("b", pa.int8())),
    "rename": lambda table: table.rename_column("v", "w"),
    "promote": lambda table: table.promote_column("k", pa.int64()),
    "evolve": lambda table: table.evolve("k, v"),
}
OTHERS: dict[str, Callable[[phalanx.Table], object]] = {
    "column": lambda table: table.add_column(pa.field("a", pa.int8())),
    "index": lambda table: table.create_index("v", "BTREE"),
}


@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("other", OTHERS)
def test_what_another_writer_changes_meanwhile_stays(
    mode: str, change: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, "k", transaction=mode)
    table.append(pa.table([[1, 2], [1, 2]], schema=SCHEMA))
    theirs = phalanx.open(table.uri)
    waiting = [OTHERS[other]]

    def with_another(step: Callable[..., Any]) -> Callable[..., Any]:
        """Run the step, then let another writer change the table, which goes on with the newest."""

        def run(manifest: Any, *how: Any) -> Any:
            step(manifest, *how)
            while waiting:
                waiting.pop()(theirs)
            return step(manifest.load_latest(), *how) if mode == "strong" else step(manifest, *how)

        return run

    for name in ("_number_leaves", "_change_columns"):
        monkeypatch.setattr(changes, name, with_another(getattr(changes, name)))
    with suppress(CommitConflict):
        CHANGES[change](table)
    assert not waiting

    found = phalanx.open(table.uri)
    if other == "column":
        assert "a" in found.schema.names
    else:
        assert [each.kind for each in found.indexes] == ["BTREE"]
    data = pa.table(
        {name: pa.array([3], found.schema.field(name).type) for name in found.schema.names}
    )
    assert found.append(data) == 1
    assert phalanx.open(table.uri).scan().count_rows() == 3
