"""Format counts and sizes for plans and messages."""

from __future__ import annotations


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: int) -> str:
    """Return a number of bytes with a decimal unit: `1.5 MB`."""
    if size < 1000:
        return f"{size} bytes"
    step = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**step:.1f} {('', 'kB', 'MB', 'GB', 'TB')[step]}"
