"""`tcc run`."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource
from tcc.cli.arrays import as_values, inputs_of, write_arrays
from tcc.cli.choices import OUTPUT, PATH, json_flag, run_flags
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.joined import joined
from tcc.cli.opened import opened_artifact
from tcc.cli.ranks import check_pin, run_ranks
from tcc.cli.show import array_lines, array_record, print_json, say, say_fitted
from tcc.errors import UserError


@click.command()
@click.argument("model", type=PATH)
@run_flags
@click.option("--output", type=OUTPUT, metavar="DIR", help="Writes each output to DIR/NAME.npy.")
@click.option(
    "--nproc",
    type=click.IntRange(1, 64),
    help="Runs this many ranks of a model with collectives, on this host; {rank} in the names of "
    "artifacts, inputs and outputs is the number of each.",
)
@click.option("--pin", is_flag=True, help="With --nproc: each rank has CPUs of its own.")
@json_flag
@timeout_flag
def run(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    output: Path | None,
    nproc: int | None,
    pin: bool,
    as_json: bool,
) -> None:
    """Runs MODEL, an artifact or an ONNX file, once.

    A model with collectives runs as one rank of a job, which --nproc or a launcher (mpirun,
    torchrun, srun) starts.

    \b
    Example:
      tcc run model.so --input image=@cat.npy --output results --timeout 60
      tcc run part{rank}.so --nproc 2 --pin --input x=@x.npy
      tcc run model.so --nproc 4            (compiled with --ranks 1,4)
    """
    source = click.get_current_context().get_parameter_source("seed")
    seeded = source is not ParameterSource.DEFAULT
    check_pin(nproc, pin)
    if nproc and output is not None and "{rank}" not in str(output):
        hint = f"give each a folder of its own: --output {output}{{rank}}"
        raise UserError("ranks would write the same files", where=f"--output {output}", hint=hint)
    with opened_artifact(model, inputs) as artifact:
        if nproc:
            words = ["run", str(artifact), *(f"--input={i}" for i in inputs)]
            words += [f"--seed={seed}"] * seeded
            words += [f"--threads={threads}"] * (threads is not None) + ["--json"] * as_json
            words += [f"--output={output}"] * (output is not None)
            _show_ranks(run_ranks(nproc, pin, words), as_json)
            return
        with joined(artifact, threads) as (module, _):
            arrays = inputs_of(artifact, module.inputs, inputs, seed)
            results = interruptible(lambda: module.run(arrays, seed=seed if seeded else None))
    if output is not None:
        write_arrays(results, output)
    values = as_values(results, module.outputs)
    if as_json:
        print_json({name: array_record(value) for name, value in values.items()})
        return
    say_fitted(array_lines(values))


def _show_ranks(printed: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json([json.loads(text) for text in printed])
        return
    for rank, text in enumerate(printed):
        for line in text.splitlines():
            say(f"rank {rank}: {line}")
