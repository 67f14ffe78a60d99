"""Measures two ways to do the same job, and formats the ratio of their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


def best(action: Callable[[], object], runs: int) -> float:
    """Return the seconds of the shortest of several runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def time_alternately(
    actions: Mapping[str, Callable[[], object]],
    runs: int,
    chosen: Callable[[Sequence[float]], float] = min,
) -> dict[str, float]:
    """Return the shortest (or median) time of each action. Runs alternate, so noise affects all."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: chosen(found) for name, found in times.items()}


def median(times: Sequence[float]) -> float:
    """Return the median time."""
    return statistics.median(times)


@dataclass(frozen=True, slots=True)
class Measured:
    """A ratio of two times, and its bound."""

    what: str
    ours: float
    theirs_name: str
    theirs: float
    ratio: float
    bound: str
    holds: bool

    def __str__(self) -> str:
        return (
            f"{self.what}\n{'':<10} {_format_seconds(self.ours)}, "
            f"{self.theirs_name}: {_format_seconds(self.theirs)}; "
            f"{self.ratio:.2f}×, should be {self.bound}: {_verdict(self.holds)}"
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """How a cost grows with the size of its input."""

    what: str
    unit: str
    times: Mapping[int, float]

    def __str__(self) -> str:
        steps = ", ".join(f"{size:,}: {_format_seconds(time)}" for size, time in self.times.items())
        return f"{self.what} by {self.unit}\n{'':<10} {steps}"


@dataclass(frozen=True, slots=True)
class Memory:
    """The peak of the memory, by the size of the input."""

    what: str
    unit: str
    peaks: Mapping[int, int]

    def __str__(self) -> str:
        steps = ", ".join(f"{size:,}: {peak / 1e6:,.0f} MB" for size, peak in self.peaks.items())
        return f"{self.what} by {self.unit}\n{'':<10} {steps}"


@dataclass(frozen=True, slots=True)
class Beside:
    """Times of several jobs, or of one job in several systems, without a bound."""

    what: str
    times: Mapping[str, float]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}: {_format_seconds(time)}" for name, time in self.times.items())
        return f"{self.what}\n{'':<10} {shown}"


@dataclass(frozen=True, slots=True)
class Rate:
    """The number of commits of each of several writers within some seconds."""

    what: str
    seconds: float
    commits: Sequence[int]
    refused: int = 0

    @property
    def per_second(self) -> float:
        """The commits of all writers per second."""
        return sum(self.commits) / self.seconds

    def __str__(self) -> str:
        each = " + ".join(map(str, self.commits))
        refused = f", {self.refused} refused and repeated" if self.refused else ""
        return f"{self.what}\n{'':<10} {self.per_second:.1f} commits/s ({each}{refused})"


@dataclass(frozen=True, slots=True)
class Shared:
    """The throughput of several writers together, and of the slowest one."""

    what: str
    alone: Rate
    together: Rate
    at_least: float
    least_share: float

    def __str__(self) -> str:
        ratio = self.together.per_second / self.alone.per_second
        mean = sum(self.together.commits) / len(self.together.commits)
        share = min(self.together.commits) / mean if mean else 0
        return (
            f"{self.what}\n{'':<10} {ratio:.2f}× of one alone, should be at least "
            f"{self.at_least:g}×: {_verdict(ratio >= self.at_least)}; the slowest has "
            f"{share:.2f}× of the mean, should be at least {self.least_share:.2f}×: "
            f"{_verdict(share >= self.least_share)}"
        )


def faster(what: str, ours: float, theirs_name: str, theirs: float, at_least: float) -> Measured:
    """Measure how many times as fast ours is, which should be `at_least`."""
    ratio = theirs / ours
    return Measured(
        what, ours, theirs_name, theirs, ratio, f"at least {at_least:g}× faster", ratio >= at_least
    )


def cost(what: str, ours: float, theirs_name: str, theirs: float, at_most: float) -> Measured:
    """Measure how many times as long ours takes, which should be `at_most`."""
    ratio = ours / theirs
    return Measured(
        what, ours, theirs_name, theirs, ratio, f"at most {at_most:g}× its time", ratio <= at_most
    )


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _verdict(holds: bool) -> str:
    return "ok" if holds else "MISSED"
