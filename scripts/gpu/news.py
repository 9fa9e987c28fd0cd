"""Says which items of a folder no device has run yet; needs only the standard library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# How new an item is, the newest first: no run has its name; a run had other code; the same code.
NEWS = ("never", "changed", "same")


def digest_of(archive: Path) -> str:
    """Returns a digest of an item's code and weights."""
    return hashlib.sha256(archive.read_bytes()).hexdigest()[:16]


def measured(results: Path) -> dict[str, str]:
    """Returns the items that the last run measured: maps names to digests.

    `results` is the run's JSON file. If only the table beside it exists (with the suffix .txt), all
    digests are "".
    """
    if results.exists():
        items = json.loads(results.read_text())["items"]
        return {
            name: item["facts"].get("digest", "") for name, item in items.items() if "error" in item
        }
    table = results.with_suffix(".txt")
    lines = table.read_text().splitlines() if table.exists() else []
    return {line.split()[0]: "" for line in lines if line[:1].isalpha() and line.split()}


def news_of(name: str, digest: str, before: Mapping[str, str]) -> str:
    """Returns one of NEWS for an item; `before` is the result of `measured`."""
    if name not in before:
        return NEWS[0]
    return NEWS[2] if before[name] == digest else NEWS[1]


def rank(item: Mapping[str, Any]) -> int:
    """Returns a number by which the newest items come first."""
    return NEWS.index(item.get("news", NEWS[0]))
