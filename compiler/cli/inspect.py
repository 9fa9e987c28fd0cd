"""`tcc inspect`."""

from __future__ import annotations

import json
from pathlib import Path

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
        if isinstance(value, list):
            click.echo(f"{name}: {len(value)}")
            for item in value:
                click.echo(f"  {item if isinstance(item, str) else json.dumps(item)}")
        elif isinstance(value, str) and "\n" in value:
            click.echo(f"{name}:\n{value}")
        else:
            click.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
