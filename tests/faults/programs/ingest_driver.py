"""An ingest in a process of its own: `python ingest_driver.py SOURCE URI` prints what it did."""

from __future__ import annotations

import json
import sys

import phalanx.spark


def main(source: str, uri: str) -> None:
    spark = phalanx.spark.local_session("ingest")
    done = phalanx.spark.ingest(spark, source, uri, "bucket(2, id)", chunk_size=1)
    print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
