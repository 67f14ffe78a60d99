"""Which partitions a filter keeps, spec by spec, on a table whose partitioning has changed.

What cannot be decided is kept: at worst too much is rewritten, and nothing that was meant is
skipped. A filter that does not bind to the schema is refused, and so is an unknown spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import InvalidPredicate, UnknownSpec
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.predicates.rendering import summary
from phalanx.model.schema.grouping import group, order_of, positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.projection import inclusive
from phalanx.planning.pruning.residual import may_hold

# So many different causes are told; the rest is counted.
MOST_DIAGNOSTICS = 20
# So often the keys are halved in search of those that fail; what then still fails, fails together.
_MOST_EVALUATIONS = 2_000
_LONGEST_CAUSE = 300

_DROPPED, _KEPT, _UNEVALUABLE, _FAILED = range(4)
Outcomes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class FilterStats:
    """How often a filter could not be evaluated.

    | | |
    |---|---|
    | `unevaluable_specs` | specs on which the filter cannot be projected |
    | `eval_errors` | partitions for which the projected filter fails |
    | `fail_open_partitions` | partitions kept because of either |
    | `fail_open_files` | candidates, by size or deletes, in those partitions |
    """

    unevaluable_specs: int = 0
    eval_errors: int = 0
    fail_open_partitions: int = 0
    fail_open_files: int = 0

    def to_dict(self) -> dict[str, int]:
        """The numbers as JSON has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Why partitions of a spec are kept without a decision, and how many are."""

    spec_id: int
    cause: str
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """The diagnostic as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """For each partition whether it is kept, and whether only because nothing could be decided."""

    kept: npt.NDArray[np.bool_]
    fail_open: npt.NDArray[np.bool_]


class MultiSpecPartitionFilter:
    """A filter on rows, bound once, projected once on each spec, evaluated once for each key."""

    def __init__(
        self,
        where: str,
        specs: Mapping[int, PartitionSpec],
        schema: Schema,
        *,
        case_sensitive: bool = False,
    ) -> None:
        self.predicate = bind(where, schema, case_sensitive=case_sensitive)
        self._by_spec = {
            spec_id: _projected(self.predicate, spec, schema)
            for spec_id, spec in sorted(specs.items())
        }

    def __str__(self) -> str:
        return summary(self.predicate)

    def decide(self, spec_id: int, partitions: pa.Table, count: int) -> Verdicts:
        """The verdict on each of the partitions, whose values stand in columns.

        Without columns there is no table to count: `count` says how many partitions there are.
        """
        outcomes = self._of(spec_id).outcomes(partitions, count)
        return Verdicts(outcomes != _DROPPED, outcomes >= _UNEVALUABLE)

    def matches(self, key: PartitionKey) -> bool:
        """Whether the partition is kept."""
        return bool(self._verdict(key).kept[0])

    def is_fail_open(self, key: PartitionKey) -> bool:
        """Whether the partition is kept only because nothing could be decided."""
        return bool(self._verdict(key).fail_open[0])

    def _verdict(self, key: PartitionKey) -> Verdicts:
        fields = self._of(key.spec_id).spec.fields
        columns = pa.schema([(field.field_id, field.result_type) for field in fields])
        values = [[value] for value in key.values]
        arrays = [pa.array(*each) for each in zip(values, columns.types, strict=True)]
        return self.decide(key.spec_id, pa.table(arrays, schema=columns), 1)

    def _of(self, spec_id: int) -> _SpecFilter:
        if spec_id not in self._by_spec:
            raise unknown_spec(spec_id, self._by_spec)
        return self._by_spec[spec_id]

    @property
    def stats(self) -> FilterStats:
        """The numbers so far, about partitions; files are counted among the candidates."""
        by_spec = self._by_spec.values()
        failed = sum(each.count_of(_FAILED) for each in by_spec)
        return FilterStats(
            unevaluable_specs=sum(each.projected is None for each in by_spec),
            eval_errors=failed,
            fail_open_partitions=failed + sum(each.count_of(_UNEVALUABLE) for each in by_spec),
        )

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What could not be evaluated and why: each cause once, and no more than a few."""
        return tuple(self._causes())[:MOST_DIAGNOSTICS]

    @property
    def untold(self) -> int:
        """How many more causes there are."""
        return max(sum(1 for _ in self._causes()) - MOST_DIAGNOSTICS, 0)

    def _causes(self) -> Iterator[Diagnostic]:
        for spec_id, each in self._by_spec.items():
            if each.projected is None:
                yield Diagnostic(spec_id, each.cause, each.count_of(_UNEVALUABLE))
            for cause, partitions in each.failures.items():
                yield Diagnostic(spec_id, cause, partitions)

    def check(self) -> None:
        """Refuse a filter that had to keep partitions without a decision."""
        if not self.stats.fail_open_partitions:
            return
        causes = [
            f"spec v{each.spec_id} ({each.partitions:,} of its partitions): {each.cause}"
            for each in self.diagnostics
            if each.partitions
        ]
        more = f"; and {self.untold:,} more causes" if self.untold else ""
        raise InvalidPredicate(
            f"Cannot decide for every partition whether it matches {self}: {'; '.join(causes)}"
            f"{more}. Without strict=True these partitions are included."
        )


def unknown_spec(spec_id: int, known: Mapping[int, object]) -> UnknownSpec:
    """The error for an entry whose spec has no definition."""
    return UnknownSpec(
        f"An entry has spec id {spec_id}, which the table does not define. Its specs are "
        f"{', '.join(map(str, sorted(known))) or 'none'}. The metadata are damaged, or of a newer "
        "version: read them again."
    )


@dataclass
class _SpecFilter:
    """The filter as one spec sees it, and the outcomes for the keys it was asked about so far."""

    spec: PartitionSpec
    projected: Predicate | None
    cause: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    _keys: pa.Table | None = None
    _outcomes: Outcomes = field(default_factory=lambda: np.empty(0, dtype=np.int8))

    def outcomes(self, partitions: pa.Table, count: int) -> Outcomes:
        if not self.spec.fields:
            return np.full(count, _KEPT, dtype=np.int8)
        asked = group(partitions.select([each.field_id for each in self.spec.fields]), count)
        if self._keys is None:
            self._keys = asked.keys.slice(0, 0)
        places = positions(asked.keys, self._keys)
        new = np.flatnonzero(places < 0)
        if len(new):
            keys = asked.keys.take(pa.array(new))
            places[new] = np.arange(len(new)) + len(self._outcomes)
            self._outcomes = np.concatenate([self._outcomes, self._evaluated(keys)])
            self._keys = pa.concat_tables([self._keys, keys])
        found: Outcomes = self._outcomes[places][asked.codes]
        return found

    def count_of(self, outcome: int) -> int:
        return int(np.count_nonzero(self._outcomes == outcome))

    def _evaluated(self, keys: pa.Table) -> Outcomes:
        if self.projected is None:
            return np.full(keys.num_rows, _UNEVALUABLE, dtype=np.int8)
        try:
            return self._held(keys)
        except Exception:
            order = order_of(keys)
            outcomes = np.empty(keys.num_rows, dtype=np.int8)
            outcomes[order.to_numpy()] = self._halved(keys.take(order))
            return outcomes

    def _held(self, keys: pa.Table) -> Outcomes:
        assert self.projected is not None
        held = may_hold(self.projected, self.spec, keys, keys.num_rows)
        return np.where(held, _KEPT, _DROPPED).astype(np.int8)

    def _halved(self, keys: pa.Table) -> Outcomes:
        """The outcomes where some key fails: smaller and smaller parts, until it stands alone."""
        outcomes = np.full(keys.num_rows, _FAILED, dtype=np.int8)
        pending, evaluations = [(0, keys.num_rows)], 0
        while pending:
            start, end = pending.pop()
            evaluations += 1
            try:
                outcomes[start:end] = self._held(keys.slice(start, end - start))
            except Exception as error:
                if end - start == 1 or evaluations > _MOST_EVALUATIONS:
                    cause = _told(error)
                    self.failures[cause] = self.failures.get(cause, 0) + end - start
                else:
                    middle = (start + end) // 2
                    pending += [(middle, end), (start, middle)]
        return outcomes


def _projected(predicate: Predicate, spec: PartitionSpec, schema: Schema) -> _SpecFilter:
    if not spec.fields:
        return _SpecFilter(spec, predicate)
    try:
        return _SpecFilter(spec, inclusive(predicate, spec, schema))
    except Exception as error:
        return _SpecFilter(spec, None, _told(error))


def _told(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}…"
