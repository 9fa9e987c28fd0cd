"""Numbers with their units as text."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Returns a number of bytes as text of three or four digits with a unit: `2.3 MiB`."""
    suffix = "bytes"
    for suffix in ("bytes", "KiB", "MiB", "GiB"):  # noqa: B007
        if size < 1024:
            break
        size /= 1024
    return f"{size:.0f} {suffix}" if size >= 999.5 or suffix == "bytes" else f"{size:.3g} {suffix}"
