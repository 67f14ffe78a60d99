"""The model at work: specs, their JSON, the partitions of some rows, and a query that prunes."""

from datetime import datetime

import pyarrow as pa

from phalanx import bucket, month, year
from phalanx.model.binding import bind
from phalanx.model.evolution import next_spec
from phalanx.model.schema import Schema
from phalanx.planning.pruning import prune

ROWS = pa.table(
    {
        "id": pa.array([7, 8, 34, 35, None], pa.int64()),
        "ts": pa.array(
            [
                datetime(2024, 12, 31, 23, 59),
                datetime(2025, 1, 1),
                datetime(2025, 6, 7, 12),
                datetime(2025, 6, 30, 8),
                None,
            ],
            pa.timestamp("us"),
        ),
        "country": ["US", "FR", "US", None, "US"],
    }
)
WHERE = "ts >= '2025-06-01' AND ts < '2025-07-01' AND country = 'US' AND id > 10"


def show(title: str, *lines: object) -> None:
    print(f"\n{title}\n{'─' * len(title)}")
    for line in lines:
        print(line)


def columns(table: pa.Table) -> str:
    """The table as text, one line for each row."""
    rows = [table.column_names, *(map(str, row.values()) for row in table.to_pylist())]
    texts = [list(row) for row in rows]
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    )


def main() -> None:
    schema = Schema.of(ROWS.schema)
    first = next_spec([year("ts"), month("ts"), bucket("id", 16)], schema, {})
    second = next_spec("country, year(ts)", schema, {1: first})
    specs = {1: first, 2: second}

    show("Rows", columns(ROWS))
    for spec in specs.values():
        show(f"Spec {spec.id}: {spec.label(schema)}", spec.to_json())
        print(columns(spec.partition_values(ROWS, schema)))

    pruning = prune(bind(WHERE, schema), specs, schema)
    show("Query", f"SELECT * FROM events\nWHERE {WHERE}")
    show("What each spec makes of it", pruning)
    show("The manifest filter that finds the partitions to read", pruning.manifest_filter)


if __name__ == "__main__":
    main()
