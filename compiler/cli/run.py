"""`tcc run`."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from tcc.artifact import input_errors
from tcc.cli.arrays import as_values, inputs_of, write_arrays
from tcc.cli.choices import COUNT, OUTPUT, PATH, json_flag, rank_flags, run_flags
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.joined import joined
from tcc.cli.later_modules import input_texts, ranking, result_text
from tcc.cli.opened import opened_artifact
from tcc.cli.ranks import check_pin, run_ranks, words_of
from tcc.cli.show import print_json, say, say_all
from tcc.errors import UserError


@click.command()
@click.argument("model", type=PATH)
@run_flags
@click.option(
    "--output",
    type=OUTPUT,
    metavar="DIR",
    help="Writes each output to DIR/NAME.npy, and for a folder of inputs to DIR/FILE/NAME.npy; "
    "--json then has the paths in place of the values.",
)
@click.option("--top", type=COUNT, metavar="N", help="Shows the N largest values.")
@click.option(
    "--labels",
    type=PATH,
    metavar="FILE",
    help="Names the classes: line n of FILE is class n, from 0.  Implies --top 5.",
)
@rank_flags(
    "Runs this many ranks of a model with collectives, on this host; {rank} in the names of "
    "artifacts, inputs and outputs is the number of each."
)
@json_flag
@timeout_flag
@input_errors()
def run(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    output: Path | None,
    top: int | None,
    labels: Path | None,
    nproc: int | None,
    pin: bool,
    as_json: bool,
) -> None:
    """Runs MODEL, an artifact or an ONNX file, once, or once for each file of a folder.

    A picture (Pillow) becomes an array of the input's size and type; settings follow its name:
    order (rgb, bgr, rgba, grey), layout (nchw, nhwc, ...), resize=HxW, letterbox=VALUE, centre,
    crop, resize=N of the shorter edge, filter, scale, mean, std.  A value is (v * scale - mean) /
    std.  A sound (soundfile) needs its rate, as in rate=16000, and may have start, window and
    channel.  Arrays come from .npy, .npz and .bin (raw elements), and - is standard input.

    A model with collectives runs as one rank of a job, which --nproc or a launcher (mpirun,
    torchrun, srun) starts.

    \b
    Example:
      tcc run model.so --input image=@cat.npy --output results --timeout 60
      tcc run yolox.so --input images=@cat.png:bgr,letterbox=114
      tcc run resnet.so --input x=@photos:crop,scale=1/255 --labels classes.txt --top 3
      tcc run part{rank}.so --nproc 2 --pin --input x=@x.npy
      tcc run model.so --nproc 4            (compiled with --ranks 1,4)
    """
    source = click.get_current_context().get_parameter_source("seed")
    run_seed = None if source is ParameterSource.DEFAULT else seed
    check_pin(nproc, pin)
    if nproc and output is not None and "{rank}" not in str(output):
        hint = f"give each a folder of its own: --output {output}{{rank}}"
        raise UserError("ranks would write the same files", where=f"--output {output}", hint=hint)
    ranked = ranking.ranking_of(labels, top)
    with opened_artifact(model, inputs) as artifact:
        if nproc:
            input_texts.check_no_stdin(inputs)
            flags = {
                "--threads": threads,
                "--output": output,
                "--top": top,
                "--labels": labels,
                "--seed": run_seed,
            }
            words = ["run", str(artifact), *["--json"] * as_json, *words_of(inputs, flags)]
            _show_ranks(run_ranks(nproc, pin, words), as_json)
            return
        records = []
        for file, values in _results(artifact, inputs, threads, seed, run_seed):
            folder = output if output is None or not file else output / file
            record = _shown(values, file, folder, ranked, as_json)
            records.append({"file": file, "outputs": record} if file else record)
    if as_json:
        print_json(records[0] if len(records) == 1 and not file else records)


def _results(
    artifact: Path, inputs: Sequence[str], threads: int | None, seed: int, run_seed: int | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the file name and the outputs of each run, as `runs_of` and `as_values` give them.

    `seed` is that of random inputs, `run_seed` that of random numbers in the model.
    """
    with joined(artifact, threads) as (module, _):
        for number, (file, texts) in enumerate(input_texts.runs_of(module.inputs, inputs)):
            arrays = inputs_of(artifact, module.inputs, texts, seed, quiet=number > 0)
            results = interruptible(partial(module.run, arrays, seed=run_seed))
            yield file, as_values(results, module.outputs)


def _shown(
    values: dict[str, Any],
    file: str,
    folder: Path | None,
    ranked: "ranking.Ranking | None",
    as_json: bool,
) -> dict[str, Any]:
    """Writes outputs to `folder`, and prints them or returns their record for JSON."""
    if ranked is not None:
        ranking.check_ranked(ranked, values)
    paths = None if folder is None else write_arrays(values, folder)
    record = {}
    if file and not as_json:
        say(f"{file}:")
    for name, value in values.items():
        fitting = ranked if ranked is not None and ranked.fits(value) else None
        if as_json:
            record[name] = result_text.array_record(value, paths, name)
            if fitting:
                record[name]["top"] = ranking.ranked_record(fitting, value)
            continue
        say_all(result_text.array_lines({name: value}))
        say_all(ranking.ranked_lines(fitting, name, value) if fitting else ())
    return record


def _show_ranks(printed: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json([json.loads(text) for text in printed])
        return
    for rank, text in enumerate(printed):
        for line in text.splitlines():
            say(f"rank {rank}: {line}")
