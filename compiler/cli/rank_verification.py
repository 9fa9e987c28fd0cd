"""`tcc verify --nproc`: ranks compare their results with the reference."""

import json
from collections.abc import Sequence
from pathlib import Path

from tcc.cli.opened import opened_artifact
from tcc.cli.ranks import run_ranks
from tcc.cli.show import print_json, say, say_all
from tcc.driver import model_inputs
from tcc.errors import UserError
from tcc.runtime import Module
from tcc.runtime.verdict_text import rank_lines
from tcc.zipped import zip_equal

# The option of `tcc verify` by which a rank prints its report and ends with exit code 0.
REPORT = "--report"


def verify_ranks(
    model: Path,
    artifact: Path | None,
    inputs: Sequence[str],
    count: int,
    pin: bool,
    words: Sequence[str],
    as_json: bool,
) -> int:
    """Runs `tcc verify` with the options `words` on `count` ranks, prints a table of their errors,
    and returns the exit code.

    Without `artifact` the model is compiled for `count` ranks; `inputs` are texts of `--input`.
    """
    with opened_artifact(artifact or model, inputs, ranks=(count,)) as path:
        texts = run_ranks(count, pin, ["verify", str(model), str(path), *words, "--json", REPORT])
    reports = [json.loads(text) for text in texts]
    ok = all(report["ok"] for report in reports)
    if as_json:
        print_json({"ok": ok, "ranks": reports})
        return int(not ok)
    first = reports[0]
    say(f"{count} ranks, {first['precision']}, beside {first['oracle']} in {first['runs']} runs")
    say_all(rank_lines(reports))
    return int(not ok)


def check_whole_states(module: Module, model: Path) -> None:
    """Raises UserError if a rank has its own part of an input, such as the heads of a cache."""
    names = [f"{port.name}=" for port in module.inputs]
    shapes = {port.name: port.shape for port in model_inputs(model, names)}
    appended = {item["input"]: item["axis"] for item in module.manifest.get("appends", ())}
    for port in module.inputs:
        pairs = enumerate(zip_equal(port.shape, shapes[port.name]))
        parts = [axis for axis, sizes in pairs if None not in sizes and sizes[0] != sizes[1]]
        if {*parts} - {appended.get(port.name)}:
            raise UserError(
                "a rank has only a part of an input, and the reference takes the whole",
                where=f"input {port.name}",
                why=f"the plan splits this state along axis {parts[0]}",
                hint="compile without --state to compare all outputs",
            )
