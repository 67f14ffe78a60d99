"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.spark.distributing import Distribution, write
from phalanx.spark.ingesting import Ingested, ingest
from phalanx.spark.session import configure, local_session

__all__ = ["Distribution", "Ingested", "configure", "ingest", "local_session", "write"]
