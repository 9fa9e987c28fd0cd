"""`tcc inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tcc.artifact import read_manifest
from tcc.cli.arrays import make_inputs
from tcc.cli.choices import PATH, input_flag, json_flag, seed_flag, threads_flag
from tcc.cli.gpu_builds import build_lines
from tcc.cli.kernel_facts import kernel_facts
from tcc.cli.kernel_table import contraction_line, kernel_rows, table_lines
from tcc.cli.listing import kernel_listing
from tcc.cli.opened import opened_artifact
from tcc.cli.steps import measure_steps
from tcc.errors import UserError
from tcc.options import Options


@click.command()
@click.argument("artifact", type=PATH)
@click.option(
    "--kernels",
    is_flag=True,
    help="What each kernel does, and its predicted time.",
)
@click.option("--measure", is_flag=True, help="Runs the model, and adds each kernel's time.")
@click.option(
    "--runs", default=20, show_default=True, type=click.IntRange(1), help="Runs to measure."
)
@input_flag
@seed_flag
@threads_flag
@click.option(
    "--ir", metavar="KERNEL", help="Prints a kernel's LLVM IR or Triton; needs --keep-ir."
)
@click.option("--asm", metavar="KERNEL", help="Prints a kernel's assembly; needs --keep-ir.")
@json_flag
def inspect(
    artifact: Path,
    kernels: bool,
    measure: bool,
    runs: int,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    ir: str | None,
    asm: str | None,
    as_json: bool,
) -> None:
    """Shows what ARTIFACT (or the one compiled from an ONNX file) holds.

    Without --measure none of its code runs.

    \b
    Example:
      tcc inspect model.so --measure --threads 2
    """
    if ir is not None and asm is not None:
        raise UserError("a kernel is shown as LLVM IR or as assembly", where="--ir --asm")
    with opened_artifact(artifact, Options(keep_ir=True)) as path:
        if ir is not None or asm is not None:
            click.echo(kernel_listing(path, ir or asm or "", assembly=asm is not None))
            return
        manifest = read_manifest(path)
        if not (kernels or measure):
            _show_manifest(manifest, as_json)
            return
        facts, times = kernel_facts(manifest, path), None
        if measure:
            times = measure_steps(
                path,
                facts.steps,
                lambda module: make_inputs(module.inputs, inputs, seed),
                runs,
                threads,
            )
    rows = kernel_rows(facts, times)
    if as_json:
        click.echo(json.dumps([row.record() for row in rows]))
        return
    for line in (*table_lines(rows), contraction_line(facts, times), *build_lines(manifest, path)):
        if line is not None:
            click.echo(line)


def _show_manifest(manifest: dict[str, Any], as_json: bool) -> None:
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
