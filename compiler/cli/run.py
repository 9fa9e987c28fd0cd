"""`tcc run`."""

from __future__ import annotations

from pathlib import Path

import click
from tcc.artifact import load
from tcc.cli.arrays import inputs_of, write_arrays
from tcc.cli.choices import PATH, json_flag, run_flags
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.opened import opened_artifact
from tcc.cli.show import array_lines, print_json, say, shape_record


@click.command()
@click.argument("model", type=PATH)
@run_flags
@click.option("--output", type=PATH, metavar="DIR", help="Writes each output to DIR/NAME.npy.")
@json_flag
@timeout_flag
def run(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Runs MODEL, an artifact or an ONNX file, once.

    \b
    Example:
      tcc run model.so --input image=@cat.npy --output results --timeout 60
    """
    with opened_artifact(model, inputs) as artifact:
        module = load(artifact, threads)
        arrays = inputs_of(artifact, module.inputs, inputs, seed)
        results = interruptible(lambda: module.run(arrays))
    if output is not None:
        write_arrays(results, output)
    if as_json:
        print_json({name: shape_record(value) for name, value in results.items()})
        return
    for line in array_lines(results):
        say(line)
