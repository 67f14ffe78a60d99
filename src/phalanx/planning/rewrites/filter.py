"""Filter the partitions of a table with several specs.

The filter fails open: it keeps a partition that it cannot evaluate, so at worst too much is
rewritten. A filter that does not bind to the schema is an error, and so is an unknown spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import InvalidPredicate, UnknownSpec
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.predicates.rendering import summarize
from phalanx.model.schema.grouping import find_positions, group_rows, sort_indices
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.projection import project_inclusive
from phalanx.planning.pruning.residual import find_possible_partitions

# Report at most this many different causes, and count the rest.
MAX_DIAGNOSTICS = 20
# Stop searching for single failing keys after this many evaluations.
_MAX_EVALUATIONS = 2_000
_MAX_CAUSE_LENGTH = 300

_DROPPED, _KEPT, _UNEVALUABLE, _FAILED = range(4)
Outcomes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class FilterStats:
    """The numbers of specs, partitions and files for which a filter could not be evaluated.

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
        """Return the numbers for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Why partitions of a spec are kept without a decision of the filter.

    Attributes:
        spec_id: The id of the spec.
        cause: Why the filter cannot be evaluated.
        partitions: The number of partitions kept for this cause.
    """

    spec_id: int
    cause: str
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnostic for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PartitionVerdicts:
    """Whether each partition is kept, and whether only because the filter failed open."""

    kept: npt.NDArray[np.bool_]
    fail_open: npt.NDArray[np.bool_]


class MultiSpecPartitionFilter:
    """A filter on rows. It is bound once, projected once per spec and evaluated once per key."""

    def __init__(
        self,
        where: str,
        specs: Mapping[int, PartitionSpec],
        schema: Schema,
        *,
        case_sensitive: bool = False,
    ) -> None:
        self.predicate = bind_predicate(where, schema, case_sensitive=case_sensitive)
        self._by_spec = {
            spec_id: _project_on_spec(self.predicate, spec, schema)
            for spec_id, spec in sorted(specs.items())
        }

    def __str__(self) -> str:
        return summarize(self.predicate)

    def decide(self, spec_id: int, partitions: pa.Table, count: int) -> PartitionVerdicts:
        """Decide for each partition, given by columns of partition values.

        `count` is the number of partitions: a table without columns does not have it.
        """
        outcomes = self._get_spec_filter(spec_id).find_outcomes(partitions, count)
        return PartitionVerdicts(outcomes != _DROPPED, outcomes >= _UNEVALUABLE)

    def matches(self, key: PartitionKey) -> bool:
        """Return whether the partition is kept."""
        return bool(self._decide_key(key).kept[0])

    def is_fail_open(self, key: PartitionKey) -> bool:
        """Return whether the partition is kept only because the filter failed open."""
        return bool(self._decide_key(key).fail_open[0])

    def _decide_key(self, key: PartitionKey) -> PartitionVerdicts:
        fields = self._get_spec_filter(key.spec_id).spec.fields
        columns = pa.schema([(field.field_id, field.result_type) for field in fields])
        values = [[value] for value in key.values]
        arrays = [pa.array(*each) for each in zip(values, columns.types, strict=True)]
        return self.decide(key.spec_id, pa.table(arrays, schema=columns), 1)

    def _get_spec_filter(self, spec_id: int) -> _SpecFilter:
        if spec_id not in self._by_spec:
            raise unknown_spec_error(spec_id, self._by_spec)
        return self._by_spec[spec_id]

    @property
    def stats(self) -> FilterStats:
        """The statistics so far, without files, which the planner counts."""
        by_spec = self._by_spec.values()
        failed = sum(each.count(_FAILED) for each in by_spec)
        return FilterStats(
            unevaluable_specs=sum(each.projected is None for each in by_spec),
            eval_errors=failed,
            fail_open_partitions=failed + sum(each.count(_UNEVALUABLE) for each in by_spec),
        )

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The causes of failed evaluations, each once, up to `MAX_DIAGNOSTICS`."""
        return tuple(self._list_causes())[:MAX_DIAGNOSTICS]

    @property
    def more_diagnostics(self) -> int:
        """The number of causes beyond `diagnostics`."""
        return max(sum(1 for _ in self._list_causes()) - MAX_DIAGNOSTICS, 0)

    def _list_causes(self) -> Iterator[Diagnostic]:
        for spec_id, each in self._by_spec.items():
            if each.projected is None:
                yield Diagnostic(spec_id, each.cause, each.count(_UNEVALUABLE))
            for cause, partitions in each.failures.items():
                yield Diagnostic(spec_id, cause, partitions)

    def check(self) -> None:
        """Raise `InvalidPredicate` if the filter kept partitions without a decision."""
        if not self.stats.fail_open_partitions:
            return
        causes = [
            f"spec v{each.spec_id} ({each.partitions:,} of its partitions): {each.cause}"
            for each in self.diagnostics
            if each.partitions
        ]
        more = f"; and {self.more_diagnostics:,} more causes" if self.more_diagnostics else ""
        raise InvalidPredicate(
            f"Cannot decide for every partition whether it matches {self}: {'; '.join(causes)}"
            f"{more}. Without strict=True these partitions are included."
        )


def unknown_spec_error(spec_id: int, known: Mapping[int, object]) -> UnknownSpec:
    """Return the error for an entry with an undefined spec."""
    return UnknownSpec(
        f"An entry has spec id {spec_id}, which the table does not define. Its specs are "
        f"{', '.join(map(str, sorted(known))) or 'none'}. The metadata is damaged or outdated: "
        "read it again."
    )


@dataclass
class _SpecFilter:
    """The filter projected on one spec, with the outcomes for the keys decided so far."""

    spec: PartitionSpec
    projected: Predicate | None
    cause: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    _keys: pa.Table | None = None
    _outcomes: Outcomes = field(default_factory=lambda: np.empty(0, dtype=np.int8))

    def find_outcomes(self, partitions: pa.Table, count: int) -> Outcomes:
        if not self.spec.fields:
            return np.full(count, _KEPT, dtype=np.int8)
        groups = group_rows(partitions.select([each.field_id for each in self.spec.fields]), count)
        if self._keys is None:
            self._keys = groups.keys.slice(0, 0)
        indices = find_positions(groups.keys, self._keys)
        new = np.flatnonzero(indices < 0)
        if len(new):
            keys = groups.keys.take(pa.array(new))
            indices[new] = np.arange(len(new)) + len(self._outcomes)
            self._outcomes = np.concatenate([self._outcomes, self._evaluate(keys)])
            self._keys = pa.concat_tables([self._keys, keys])
        found: Outcomes = self._outcomes[indices][groups.codes]
        return found

    def count(self, outcome: int) -> int:
        return int(np.count_nonzero(self._outcomes == outcome))

    def _evaluate(self, keys: pa.Table) -> Outcomes:
        if self.projected is None:
            return np.full(keys.num_rows, _UNEVALUABLE, dtype=np.int8)
        try:
            return self._evaluate_at_once(keys)
        except Exception:
            order = sort_indices(keys)
            outcomes = np.empty(keys.num_rows, dtype=np.int8)
            outcomes[order.to_numpy()] = self._evaluate_by_halves(keys.take(order))
            return outcomes

    def _evaluate_at_once(self, keys: pa.Table) -> Outcomes:
        assert self.projected is not None
        possible = find_possible_partitions(self.projected, self.spec, keys, keys.num_rows)
        return np.where(possible, _KEPT, _DROPPED).astype(np.int8)

    def _evaluate_by_halves(self, keys: pa.Table) -> Outcomes:
        """Evaluate keys of which some fail, halving the range until each failing key is alone."""
        outcomes = np.full(keys.num_rows, _FAILED, dtype=np.int8)
        pending, evaluations = [(0, keys.num_rows)], 0
        while pending:
            start, end = pending.pop()
            evaluations += 1
            try:
                outcomes[start:end] = self._evaluate_at_once(keys.slice(start, end - start))
            except Exception as error:
                if end - start == 1 or evaluations > _MAX_EVALUATIONS:
                    cause = _format_cause(error)
                    self.failures[cause] = self.failures.get(cause, 0) + end - start
                else:
                    middle = (start + end) // 2
                    pending += [(middle, end), (start, middle)]
        return outcomes


def _project_on_spec(predicate: Predicate, spec: PartitionSpec, schema: Schema) -> _SpecFilter:
    if not spec.fields:
        return _SpecFilter(spec, predicate)
    try:
        return _SpecFilter(spec, project_inclusive(predicate, spec, schema))
    except Exception as error:
        return _SpecFilter(spec, None, _format_cause(error))


def _format_cause(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_CAUSE_LENGTH else f"{text[:_MAX_CAUSE_LENGTH]}…"
