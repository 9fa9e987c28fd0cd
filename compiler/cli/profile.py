"""`tcc profile`."""

from functools import partial
from pathlib import Path

import click
from tcc.artifact import input_errors
from tcc.cli.arrays import inputs_of
from tcc.cli.choices import COUNT, OUTPUT, PATH, json_flag, run_flags
from tcc.cli.deadline import interruptible, timeout_flag
from tcc.cli.joined import joined
from tcc.cli.later_modules import profile as profiles
from tcc.cli.later_modules import profile_text
from tcc.cli.opened import opened_artifact
from tcc.cli.show import print_json, say, say_all
from tcc.errors import file_errors


@click.command()
@click.argument("model", metavar="ARTIFACT", type=PATH)
@click.option("-o", "page", type=OUTPUT, metavar="PAGE.html", help="Writes a page, in one file.")
@click.option("--trace", type=OUTPUT, metavar="TRACE.json", help="Writes a trace for Perfetto.")
@click.option("--runs", type=COUNT, help="Runs to measure; default: what a second allows.")
@run_flags
@json_flag
@timeout_flag
def profile(
    model: Path,
    page: Path | None,
    trace: Path | None,
    runs: int | None,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Shows where the time of ARTIFACT's runs goes, by step and by thread.

    The page has a timeline, a roofline, the memory of each step and a table, and needs no network.

    \b
    Example:
      tcc profile model.so -o page.html --trace trace.json
    """
    with opened_artifact(model, inputs) as artifact, joined(artifact, threads) as (module, _):
        arrays = inputs_of(artifact, module.inputs, inputs, seed)
        result = interruptible(partial(profiles.profile, module, arrays, runs=runs))
    for path, save in ((page, result.save_page), (trace, result.save_trace)):
        if path is not None:
            with input_errors(), file_errors("a profile cannot be written", path):
                save(path)
    if as_json:
        print_json(profile_text.record(result))
        return
    say_all(profile_text.lines(result))
    for path in (page, trace):
        if path is not None:
            say(f"wrote {path}")
