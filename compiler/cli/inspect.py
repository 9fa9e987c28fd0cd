"""`tcc inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tcc.artifact import read_manifest
from tcc.cli.choices import PATH, json_flag


@click.command()
@click.argument("artifact", type=PATH)
@json_flag
def inspect(artifact: Path, as_json: bool) -> None:
    """Shows what ARTIFACT holds, without running any of its code.

    \b
    Example:
      tcc inspect model.so
    """
    manifest = read_manifest(artifact)
    if as_json:
        click.echo(json.dumps(manifest))
        return
    for name, value in manifest.items():
        for line in _lines(name, value):
            click.echo(line)


def _flat(value: Any) -> bool:
    """Whether a value fits on one line: no records in it."""
    if isinstance(value, list):
        return not any(isinstance(item, list | dict) for item in value)
    return not isinstance(value, dict)


def _lines(name: str, value: Any) -> Iterator[str]:
    """A table is its length and one row per line; nested values are indented."""
    if _flat(value):
        yield f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}"
        return
    rows = value if isinstance(value, list) else [value]
    yield f"{name}: {len(rows)}" if isinstance(value, list) else f"{name}:"
    for row in rows:
        if isinstance(row, dict) and not all(map(_flat, row.values())):
            for inner, item in row.items():
                yield from (f"  {line}" for line in _lines(inner, item))
        elif isinstance(row, dict):
            yield "  " + ", ".join(f"{k} {v}" for k, v in row.items())
        else:
            yield f"  {row}"
