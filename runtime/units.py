"""Numbers with their units as text."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Returns a number of bytes as text of three or four digits with a unit: `2.3 MiB`."""
    suffixes = ["GiB", "MiB", "KiB", "bytes"]
    while size >= 1024 and len(suffixes) > 1:
        size /= 1024
        suffixes.pop()
    suffix = suffixes[-1]
    return f"{size:.0f} {suffix}" if size >= 999.5 or suffix == "bytes" else f"{size:.3g} {suffix}"


def duration(seconds: float) -> str:
    """Returns seconds as text of three digits, in s, ms or us."""
    for suffix, factor in (("s", 1), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {suffix}"
    return f"{seconds * 1e6:.3g} us"
