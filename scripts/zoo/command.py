"""The sub-commands of `scripts/breadth`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from environment import ROOT
from goals import BASELINES
from tcc.driver import resolve_targets
from tcc.options import Options
from tcc.target import targets_text
from zoo import report
from zoo.draw import Drawn, Entry, draw, part_of, read, shard, text
from zoo.outcomes import Outcome, Outcomes, in_process, named

RESULTS = ROOT / "scripts" / "results"
LIST = RESULTS / "breadth_list.json"
FOLDER = ROOT / "build" / "breadth"
LIMITS = {"export": 1800.0, "time": 3600.0}  # seconds of one architecture


def main(page: str) -> int:
    """Returns the exit code."""
    chosen = _parse(page)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    if chosen.step == "draw":
        return drawing()
    try:
        drawn = read(LIST)
    except (OSError, ValueError) as error:
        print(f"scripts/breadth: {error}; run scripts/breadth draw", file=sys.stderr)
        return 2
    target = targets_text(resolve_targets(Options()))
    outcomes = Outcomes(FOLDER, _table(RESULTS, chosen, ".json"), target, chosen.precision)
    if chosen.step == "one":
        return one(drawn, outcomes, chosen)
    if chosen.step == "table":
        return tabling(drawn, outcomes, chosen)
    unknown = sorted({*chosen.only} - {entry.family for entry in drawn.entries()})
    if unknown:
        print(f"scripts/breadth: no family {unknown[0]!r} in {LIST.name}", file=sys.stderr)
        return 2
    if (wrong := _other_versions(drawn)) is not None:
        print(f"scripts/breadth: {wrong}", file=sys.stderr)
        return 2
    return (exporting if chosen.step == "export" else timing)(drawn, outcomes, chosen)


def _parse(page: str) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    parser.set_defaults(precision="f32")
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    steps.add_parser("draw", help="write the list of architectures, or check it")
    for step, told in (("export", "write ONNX files"), ("time", "time them beside the peers")):
        own = steps.add_parser(step, help=told)
        own.add_argument("--shard", type=_part, default=(1, 1), metavar="K/N", help="as in 2/7")
        own.add_argument("--only", type=_listed, default=(), metavar="A,B", help="families")
        own.add_argument("--again", action="store_true", help="what has an outcome, too")
    _add_precision(own)
    own.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    own.add_argument("--rounds", type=int, default=7)
    own.add_argument("--seconds", type=float, default=0.3, help="of one peer in one round")
    own.add_argument("--patience", type=float, default=60.0, help="seconds a model may wait")
    own.add_argument("--cap", type=float, default=600.0, help="seconds of a peer's one answer")
    own.add_argument("--discard", action="store_true", help="remove the ONNX file of what is timed")
    own = steps.add_parser("table", help="write what is known as a table, JSON and a chart")
    own.add_argument("--publish", action="store_true", help="to scripts/results")
    own.add_argument("--check", action="store_true", help="exit code 1 unless all goals are met")
    _add_precision(own)
    own = steps.add_parser("one")  # a process for one architecture
    own.add_argument("what", choices=sorted(LIMITS))
    own.add_argument("family")
    own.add_argument("plan", nargs="?", default="{}")
    _add_precision(own)
    chosen = parser.parse_args()
    if chosen.step == "time" and (
        min(chosen.threads, chosen.rounds) < 1 or min(chosen.seconds, chosen.cap) <= 0
    ):
        parser.error("--threads, --rounds, --seconds and --cap are positive")
    return chosen


def _add_precision(own: argparse.ArgumentParser) -> None:
    own.add_argument("--precision", choices=sorted(BASELINES), default="f32", help="of the times")


def _table(folder: Path, chosen: argparse.Namespace, suffix: str) -> Path:
    """The file of the table of a precision in `folder`."""
    return folder / f"{named('breadth', chosen.precision)}{suffix}"


def _part(given: str) -> tuple[int, int]:
    try:
        return part_of(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _listed(given: str) -> tuple[str, ...]:
    return tuple(part for part in given.split(",") if part)


# ---- steps ---------------------------------------------------------------------------------------


def drawing() -> int:
    """Writes the list where there is none, else compares it."""
    from zoo.registries import registries, versions

    found = text(draw(registries(), versions()))
    if not LIST.exists():
        LIST.write_text(found)
        print(f"{LIST.relative_to(ROOT)}: {len(list(read(LIST).entries()))} candidates")
        return 0
    if LIST.read_text() == found:
        print(f"{LIST.relative_to(ROOT)} is what the seed draws")
        return 0
    print(f"{LIST.relative_to(ROOT)} is not what the seed draws from these registries")
    return 1


def exporting(drawn: Drawn, outcomes: Outcomes, chosen: argparse.Namespace) -> int:
    """Until each member of the part has an ONNX file; one that fails is replaced by the next.

    Raises where the libraries cannot be imported: no architecture fails for that.
    """
    _check_libraries()
    if chosen.again:
        for entry in chosen_of(drawn, list(drawn.entries()), chosen):
            outcomes.forget("export", entry.family)
    while True:
        members = drawn.members(outcomes.failed_exports())
        own = chosen_of(drawn, members, chosen)
        wanted = [entry for entry in own if outcomes.get("export", entry.family) is None]
        if not wanted:
            break
        _step(outcomes, "export", wanted[0], (), f"{len(own) - len(wanted) + 1} of {len(own)}")
    left = [e.family for e in members if outcomes.get("export", e.family) is None]
    if left:
        print(f"not exported: {', '.join(left)}")
    return int(bool(left))


def timing(drawn: Drawn, outcomes: Outcomes, chosen: argparse.Namespace) -> int:
    """Each member of the part that has no times; what is not exported here is exported first."""
    names = ("threads", "rounds", "seconds", "patience", "cap")
    plan = json.dumps({name: getattr(chosen, name) for name in names})
    own = chosen_of(drawn, drawn.members(outcomes.failed_exports()), chosen)
    failed = False
    for number, entry in enumerate(own, 1):
        if outcomes.get("time", entry.family) and not chosen.again:
            continue
        place = f"{number} of {len(own)}"
        files = [FOLDER / f"{entry.family}{suffix}" for suffix in (".onnx", ".npz")]
        if not all(file.is_file() for file in files):
            exported = _step(outcomes, "export", entry, (), place)
            if exported["outcome"] != "done":
                print(f"{entry.family} is replaced: run scripts/breadth export")
                failed = True
                continue
        given = (plan, "--precision", chosen.precision)
        failed |= _step(outcomes, "time", entry, given, place)["outcome"] != "done"
        for file in files if chosen.discard else ():
            file.unlink(missing_ok=True)
    return int(failed)


def chosen_of(drawn: Drawn, members: Sequence[Entry], chosen: argparse.Namespace) -> list[Entry]:
    """The members of the part; with --only those of its families."""
    own = shard(members, drawn, *chosen.shard)
    return [entry for entry in own if not chosen.only or entry.family in chosen.only]


def _step(
    outcomes: Outcomes, step: str, entry: Entry, arguments: tuple[str, ...], place: str
) -> Outcome:
    """One architecture in a process of its own, and a line about it."""
    started = time.perf_counter()
    print(f"{place}: {entry.family} ({entry.model}): {step} ...", end=" ", flush=True)
    script = Path(__file__).resolve().parent.parent / "breadth"
    command = (script, "one", step, entry.family, *arguments)
    found = in_process(outcomes, step, entry.family, command, LIMITS[step])
    ratio = report.ratio_of(found) if step == "time" else None
    told = found["outcome"] if ratio is None else f"ratio {ratio:.2f}"
    why = f": {found['why']}" if "why" in found else ""
    print(f"{told} ({time.perf_counter() - started:.0f} s){why}", flush=True)
    return found


def one(drawn: Drawn, outcomes: Outcomes, chosen: argparse.Namespace) -> int:
    """The step `chosen.what` of one architecture; its outcome is put, not returned."""
    entry = next(entry for entry in drawn.entries() if entry.family == chosen.family)
    work = {"export": _export, "time": _time}[chosen.what]
    try:
        plan = {**json.loads(chosen.plan), "precision": chosen.precision}
        found = {"outcome": "done", **work(entry, plan)}
    except Exception as error:  # whatever a library raises is the reason in the table
        found = {"outcome": "failed", "why": reason(error)}
        outcomes.put(chosen.what, entry.family, found)
        raise
    outcomes.put(chosen.what, entry.family, found)
    return 0


def _check_libraries() -> None:
    from zoo.registries import import_transformers

    import_transformers()


def reason(error: BaseException) -> str:
    """The error, and the one that it comes from, on one line, without this machine's paths."""
    while error.__cause__ is not None and isinstance(error, ImportError):
        error = error.__cause__  # a library's lazy import says nothing
    told = [error] if error.__cause__ is None else [error, error.__cause__]
    lines = [
        f"{type(each).__name__}: " + " | ".join(filter(None, map(str.strip, str(each).split("\n"))))
        for each in told
    ]
    return " <- ".join(line[:300] for line in lines).replace(f"{ROOT}/", "")


def _export(entry: Entry, plan: dict[str, Any]) -> dict[str, Any]:
    from zoo.export import export

    return export(entry, FOLDER)


def _time(entry: Entry, plan: dict[str, Any]) -> dict[str, Any]:
    from zoo.timing import Plan, measure

    return measure(FOLDER / entry.family, Plan(**plan))


def tabling(drawn: Drawn, outcomes: Outcomes, chosen: argparse.Namespace) -> int:
    """Writes the three files."""
    results = report.collected(drawn, outcomes)
    folder = RESULTS if chosen.publish else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, made in _files(results):
        _table(folder, chosen, suffix).write_text(made)
    print(report.table(results), end="")
    return int(chosen.check and not all(met for _, met in report.goals(results)))


def _files(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield ".json", json.dumps(results, indent=1) + "\n"
    yield ".txt", report.table(results)
    yield ".svg", report.chart(results)


def _other_versions(drawn: Drawn) -> str | None:
    """What is installed is what was drawn from, or the error in words."""
    from importlib.metadata import version

    for name, wanted in drawn.versions.items():
        if version(name) != wanted:
            return f"the list was drawn from {name} {wanted}, {version(name)} is installed"
    return None
