"""`tcc run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import click
from tcc.artifact import load
from tcc.cli.arrays import inputs_of, write_arrays
from tcc.cli.choices import PATH, Seconds, input_flag, json_flag, seed_flag, threads_flag
from tcc.cli.opened import opened_artifact
from tcc.cli.show import array_lines, say, shape_record
from tcc.errors import UserError


@click.command()
@click.argument("model", type=PATH)
@input_flag
@seed_flag
@threads_flag
@click.option("--output", type=PATH, metavar="DIR", help="Writes each output to DIR/NAME.npy.")
@click.option("--timeout", type=Seconds(), help="The most that the run may take.")
@json_flag
def run(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    output: Path | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Runs MODEL, an artifact or an ONNX file, once.

    \b
    Example:
      tcc run model.so --input image=@cat.npy --output results
    """
    with opened_artifact(model, inputs) as artifact:
        module = load(artifact, threads)
        arrays = inputs_of(artifact, module.inputs, inputs, seed)
        results = _within(timeout, lambda: module.run(arrays))
    if output is not None:
        write_arrays(results, output)
    if as_json:
        click.echo(json.dumps({name: shape_record(value) for name, value in results.items()}))
        return
    for line in array_lines(results):
        say(line)


def _within(seconds: float | None, work: Callable[[], Any]) -> Any:
    """What `work` gives.  It runs on a thread that the end of the process does not wait for: so a
    signal, or the time, ends it wherever it is.  Raises UserError after `seconds`."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise UserError(
            "the run takes longer than it may", where=f"--timeout {seconds:g}", hint="allow it more"
        )
    return done[0]
