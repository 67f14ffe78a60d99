"""The types of the arguments that the public functions take.

Enumerated texts are `Literal` types, so that a type checker finds a wrong one. Options that a
method takes by name are typed dictionaries (`**options: Unpack[RewriteArguments]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

Mode: TypeAlias = Literal["weak", "strong"]
"""What a write commits: each partition by itself ("weak"), or one snapshot of all ("strong")."""

Layout: TypeAlias = Literal["namespace", "expressions", "hive"]
"""How a table is stored: in the newest format ("namespace"), or in an earlier draft of it."""

Isolation: TypeAlias = Literal["snapshot", "serializable"]
"""What a transaction checks when it commits: its writes, or also what it has read."""

WhenMatched: TypeAlias = Literal["update", "delete", "ignore"]
"""What a merge does with a row whose key the data has."""

WhenNotMatched: TypeAlias = Literal["insert", "ignore"]
"""What a merge does with a data row whose key the table does not have."""

WriteOperation: TypeAlias = Literal["append", "overwrite", "overwrite_partitions"]
"""What a write job does with its rows."""

Metric: TypeAlias = Literal["l2", "cosine", "dot", "hamming"]
"""How the distance of two vectors is computed."""

WordOperator: TypeAlias = Literal["or", "and"]
"""Whether a full-text search requires any of the words, or all."""

IndexKind: TypeAlias = Literal[
    "IVF_FLAT",
    "IVF_PQ",
    "IVF_SQ",
    "IVF_RQ",
    "IVF_HNSW_FLAT",
    "IVF_HNSW_PQ",
    "IVF_HNSW_SQ",
    "INVERTED",
    "BTREE",
    "BITMAP",
    "LABEL_LIST",
    "NGRAM",
    "ZONEMAP",
    "BLOOMFILTER",
]
"""The kinds of Lance's indexes: for vectors, for words (INVERTED), and for `where`."""

JobOrder: TypeAlias = Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"]
"""Which file groups a rewrite takes first."""

JoinHow: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Which rows without a partner a join keeps; Spark's other spellings are accepted, too."""

SaveMode: TypeAlias = Literal["append", "overwrite"]
"""What a write of a DataFrame does with the rows that the table has."""

Shuffle: TypeAlias = Literal["auto", "hash", "none"]
"""Whether Spark shuffles rows to their partitions before a write."""

TimeParts: TypeAlias = Literal["calendar", "epoch"]
"""Whether a DuckLake's year, month, day and hour are calendar parts, or counts since 1970."""

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of finished tasks and the number of all."""


@runtime_checkable
class ArrowStreamExportable(Protocol):
    """Rows that export an Arrow stream: tables of pyarrow, polars and DuckDB, pandas DataFrames.

    See the Arrow PyCapsule interface. A `phalanx.Scan` is one, too.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with an `ArrowArrayStream`."""
        ...


class RewriteArguments(TypedDict, total=False):
    """The options of `Table.rewrite` and `Table.plan_rewrite`, with Iceberg's names.

    `phalanx.RewriteOptions` says what each one means, and has the defaults.
    """

    partition_filter: str | None
    case_sensitive: bool
    strict: bool
    target_file_size_bytes: int
    min_file_size_bytes: int | None
    max_file_size_bytes: int | None
    min_input_files: int
    delete_file_threshold: int | None
    delete_ratio_threshold: float
    max_file_group_size_bytes: int
    rewrite_job_order: JobOrder
    rewrite_all: bool
    max_files_to_rewrite: int | None


class SparkWriteArguments(TypedDict, total=False):
    """The other options of `phalanx.spark.write`, which are those of `format("phalanx")`.

    | | |
    |---|---|
    | `transaction` | the mode of a table that is created |
    | `if_exists` | "append" (default), "error", or "ignore": write nothing |
    | `replace_where` | with mode "overwrite": replace only the rows that match |
    | `partition_overwrite` | "dynamic": replace the partitions that the rows are in |
    | `marker` | of all writes with the same marker one is committed |
    | `report` | False: print nothing |
    """

    transaction: Mode | None
    if_exists: Literal["append", "error", "ignore"] | None
    replace_where: str | None
    partition_overwrite: Literal["static", "dynamic"] | None
    marker: str | None
    report: bool | None


class HealthArguments(TypedDict, total=False):
    """The limits of `Table.health`.

    `phalanx.HealthLimits` says what each one means, and has the defaults.
    """

    skew_ratio: int
    skew_bytes: int
    skew_partitions: int
    tiny_bytes: int
    tiny_partitions: int
    huge_bytes: int
    orphan_bytes: int


class IndexArguments(TypedDict, total=False):
    """The options of `Table.create_index`, which are Lance's; each kind of index takes some.

    - IVF_…: `metric` `num_partitions` `target_partition_size` `sample_rate` `max_iters`
    - IVF_PQ, IVF_RQ, IVF_HNSW_PQ: also `num_sub_vectors` `num_bits`
    - IVF_HNSW_…: also `m` `ef_construction`
    - INVERTED: `with_position` `base_tokenizer` `language` `max_token_length` `lower_case` `stem`
      `remove_stop_words` `custom_stop_words` `ascii_folding` `min_ngram_length`
      `max_ngram_length` `prefix_only` `block_size`
    - ZONEMAP: `rows_per_zone`
    - BLOOMFILTER: `number_of_items` `probability`
    """

    metric: Metric
    num_partitions: int
    target_partition_size: int
    num_sub_vectors: int
    num_bits: int
    sample_rate: int
    max_iters: int
    m: int
    ef_construction: int
    with_position: bool
    base_tokenizer: str
    language: str
    max_token_length: int
    lower_case: bool
    stem: bool
    remove_stop_words: bool
    custom_stop_words: Sequence[str]
    ascii_folding: bool
    min_ngram_length: int
    max_ngram_length: int
    prefix_only: bool
    block_size: int
    rows_per_zone: int
    number_of_items: int
    probability: float
