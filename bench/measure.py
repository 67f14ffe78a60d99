"""Timing two ways of doing the same, and how their ratio is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def best(action: Callable[[], object], runs: int) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True, slots=True)
class Measured:
    """A ratio of two times, and the bound it should keep."""

    what: str
    ours: float
    theirs_name: str
    theirs: float
    ratio: float
    bound: str
    holds: bool

    def __str__(self) -> str:
        verdict = "ok" if self.holds else "MISSED"
        return (
            f"{self.what}\n{'':<10} {_shown(self.ours)}, "
            f"{self.theirs_name}: {_shown(self.theirs)}; "
            f"{self.ratio:.2f}×, should be {self.bound}: {verdict}"
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """How a cost grows with the size of its input."""

    what: str
    unit: str
    times: Mapping[int, float]

    def __str__(self) -> str:
        steps = ", ".join(f"{size:,}: {_shown(time)}" for size, time in self.times.items())
        return f"{self.what} by {self.unit}\n{'':<10} {steps}"


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory is needed at most, by the size of the input."""

    what: str
    unit: str
    peaks: Mapping[int, int]

    def __str__(self) -> str:
        steps = ", ".join(f"{size:,}: {peak / 1e6:,.0f} MB" for size, peak in self.peaks.items())
        return f"{self.what} by {self.unit}\n{'':<10} {steps}"


def faster(what: str, ours: float, theirs_name: str, theirs: float, at_least: float) -> Measured:
    """How many times faster ours is."""
    ratio = theirs / ours
    return Measured(
        what, ours, theirs_name, theirs, ratio, f"at least {at_least:g}× faster", ratio >= at_least
    )


def cost(what: str, ours: float, theirs_name: str, theirs: float, at_most: float) -> Measured:
    """How many times the other's time ours takes."""
    ratio = ours / theirs
    return Measured(
        what, ours, theirs_name, theirs, ratio, f"at most {at_most:g}× its time", ratio <= at_most
    )


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
