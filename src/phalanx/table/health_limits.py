"""From where on a table wants something to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from phalanx.errors import PhalanxError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """From where on something is a finding. Sizes are bytes of partitions under the newest spec.

    | | |
    |---|---|
    | `skew_ratio` | a partition so many times as large as the median is skewed … |
    | `skew_bytes` | … if it is as large as this: below, no task takes long |
    | `skew_partitions` | … and there are so many partitions with rows |
    | `tiny_bytes` | a partition below this is tiny … |
    | `tiny_partitions` | … which is worth a finding if so many are, and more than half of all |
    | `huge_bytes` | a partition above this is huge |
    | `orphan_bytes` | so many bytes that nothing needs are worth a vacuum |

    What wants compaction, and how many deleted rows are many, is what `plan_rewrite` says without
    options: `RewriteOptions`.
    """

    skew_ratio: int = 10
    skew_bytes: int = 128 << 20
    skew_partitions: int = 5
    tiny_bytes: int = 16 << 20
    tiny_partitions: int = 50
    huge_bytes: int = 100 << 30
    orphan_bytes: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PhalanxError(
                    f"Cannot judge health with {each.name}={shown(value)}: expected a whole number "
                    "from 1 on."
                )


def health_limits(given: Mapping[str, int]) -> HealthLimits:
    """The limits by their names, of which no others are known."""
    known = [each.name for each in fields(HealthLimits)]
    for name in given:
        if name not in known:
            raise PhalanxError(
                f"Cannot judge health with {name}={shown(given[name])}: there is no such limit. "
                f"Expected one of {', '.join(known)}."
            )
    return HealthLimits(**given)
