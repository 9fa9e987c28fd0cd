"""Names and numbers of a graph's nodes as people read them, for pictures and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tcc.runtime.units import duration

_NODE_KIND = re.compile(r"^(.*?)( \([^()]*\))((?: \([^()]*\))*)$", re.DOTALL)


def step_label(data: Mapping[str, Any]) -> str:
    """Returns the name of a step: its node in the model, or else its kernel or function."""
    return str(data.get("location") or data["name"])


def split_location(location: str) -> tuple[tuple[str, ...], str]:
    """Returns (scopes, name): "/block/conv/Conv (Conv) (+1)" is in the scopes block and conv.

    The text in parentheses behind the last name belongs to the name.
    """
    match = _NODE_KIND.match(location)
    path, suffix = (match[1], match[2] + match[3]) if match else (location, "")
    parts = [part for part in path.split("/") if part]
    if not parts:
        return (), location
    return tuple(parts[:-1]), parts[-1] + suffix


def facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name, text) for each attribute of a node, in a fixed order."""
    rows = [
        ("kernel" if data["kind"] == "kernel" else data["kind"], str(data.get("name", ""))),
        ("location", data.get("location", "")),
        ("label", data.get("label", "")),
        ("place", data.get("place", "")),
        ("type", _type(data)),
        ("measured", _text(data, "measured", duration)),
        ("predicted", _text(data, "predicted", duration)),
        ("launches", _text(data, "launches", str)),
        ("flops", _text(data, "flops", _count)),
        ("bytes", _text(data, "bytes", _count)),
        ("limit", data.get("limit", "")),
        ("region", data.get("region", "")),
        ("runs", "only where data require it" if data.get("optional") else ""),
        ("sizes", "typical" if data.get("typical") else ""),
    ]
    if "first" in data:
        rows.append(("live in steps", f"{data['first']} to {data['last']}"))
    return [(name, text) for name, text in rows if text]


def _text(data: Mapping[str, Any], name: str, form: Any) -> str:
    return form(data[name]) if name in data else ""


def _count(number: int) -> str:
    return f"{number:,}"


def _type(data: Mapping[str, Any]) -> str:
    if "dtype" not in data:
        return ""
    sizes = ",".join("?" if size is None else str(size) for size in data["shape"])
    return f"{data['dtype']}[{sizes}]"
