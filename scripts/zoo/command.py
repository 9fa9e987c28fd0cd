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
from tcc.options import Options
from tcc.target import targets_text
from tcc.variants import resolve_targets
from zoo import report
from zoo.draw import Candidates, Entry, draw, part_of, read, shard, text
from zoo.outcomes import Outcome, Outcomes, in_process, named

RESULTS = ROOT / "scripts" / "results"
LIST = RESULTS / "breadth_list.json"
FOLDER = ROOT / "build" / "breadth"
LIMITS = {"export": 1800.0, "time": 3600.0}  # time limits of a step of an architecture, in seconds


def main(page: str) -> int:
    """Runs the step that the command line names, with `page` as help; returns the exit code."""
    options = _parse(page)
    # SIGTERM raises an exception, so that child processes are ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.step == "draw":
        return drawing()
    try:
        candidates = read(LIST)
    except (OSError, ValueError) as error:
        print(f"scripts/breadth: {error}; run scripts/breadth draw", file=sys.stderr)
        return 2
    target = targets_text(resolve_targets(Options()))
    outcomes = Outcomes(FOLDER, _table(RESULTS, options, ".json"), target, options.precision)
    if options.step == "one":
        return one(candidates, outcomes, options)
    if options.step == "table":
        return tabling(candidates, outcomes, options)
    unknown = sorted({*options.only} - {entry.family for entry in candidates.entries()})
    if unknown:
        print(f"scripts/breadth: no family {unknown[0]!r} in {LIST.name}", file=sys.stderr)
        return 2
    if (mismatch := _other_versions(candidates)) is not None:
        print(f"scripts/breadth: {mismatch}", file=sys.stderr)
        return 2
    return (exporting if options.step == "export" else timing)(candidates, outcomes, options)


def _parse(page: str) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    parser.set_defaults(precision="f32")
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    steps.add_parser("draw", help="write the list of architectures, or check it")
    for step, summary in (("export", "write ONNX files"), ("time", "time them and the peers")):
        command = steps.add_parser(step, help=summary)
        command.add_argument("--shard", type=_part, default=(1, 1), metavar="K/N", help="as in 2/7")
        command.add_argument("--only", type=_listed, default=(), metavar="A,B", help="families")
        command.add_argument(
            "--again", action="store_true", help="repeat entries that have an outcome"
        )
    _add_precision(command)
    command.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    command.add_argument("--rounds", type=int, default=7)
    command.add_argument("--seconds", type=float, default=0.3, help="time of one peer in one round")
    command.add_argument(
        "--patience", type=float, default=60.0, help="longest wait for a calm machine"
    )
    command.add_argument(
        "--cap", type=float, default=600.0, help="most seconds for one answer of a peer"
    )
    command.add_argument(
        "--discard", action="store_true", help="remove each ONNX file once it is timed"
    )
    command = steps.add_parser("table", help="write all outcomes as a table, JSON and a chart")
    command.add_argument("--publish", action="store_true", help="write to scripts/results")
    command.add_argument(
        "--check", action="store_true", help="exit code 1 unless all goals are met"
    )
    _add_precision(command)
    command = steps.add_parser("one")  # internal: runs a step of one architecture, in a process
    command.add_argument("what", choices=sorted(LIMITS))
    command.add_argument("family")
    command.add_argument("plan", nargs="?", default="{}")
    _add_precision(command)
    options = parser.parse_args()
    if options.step == "time" and (
        min(options.threads, options.rounds) < 1 or min(options.seconds, options.cap) <= 0
    ):
        parser.error("--threads, --rounds, --seconds and --cap must be positive")
    return options


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision", choices=sorted(BASELINES), default="f32", help="precision of the times"
    )


def _table(folder: Path, options: argparse.Namespace, suffix: str) -> Path:
    """Returns the path of the table for a precision in `folder`."""
    return folder / f"{named('breadth', options.precision)}{suffix}"


def _part(argument: str) -> tuple[int, int]:
    try:
        return part_of(argument)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _listed(argument: str) -> tuple[str, ...]:
    return tuple(part for part in argument.split(",") if part)


# ---- steps ---------------------------------------------------------------------------------------


def drawing() -> int:
    """Draws the list of architectures and writes it to LIST if there is no such file.

    Otherwise compares LIST with the draw; returns 1 if they differ.
    """
    from zoo.registries import registries, versions

    listing = text(draw(registries(), versions()))
    if not LIST.exists():
        LIST.write_text(listing)
        print(f"{LIST.relative_to(ROOT)}: {len(list(read(LIST).entries()))} candidates")
        return 0
    if LIST.read_text() == listing:
        print(f"{LIST.relative_to(ROOT)} agrees with the draw of the seed")
        return 0
    print(f"{LIST.relative_to(ROOT)} differs from the seed's draw from these registries")
    return 1


def exporting(candidates: Candidates, outcomes: Outcomes, options: argparse.Namespace) -> int:
    """Exports each member of the shard to ONNX that has no outcome yet.

    A member is a candidate that is to be measured. If the export of a member fails, the next
    candidate of its registry replaces it. If a library is missing, raises the import's error, which
    must not count as the failure of an architecture.
    """
    _check_libraries()
    if options.again:
        for entry in entries_of(candidates, list(candidates.entries()), options):
            outcomes.forget("export", entry.family)
    while True:
        members = candidates.members(outcomes.failed_exports())
        entries = entries_of(candidates, members, options)
        pending = [entry for entry in entries if outcomes.get("export", entry.family) is None]
        if not pending:
            break
        _step(
            outcomes,
            "export",
            pending[0],
            (),
            f"{len(entries) - len(pending) + 1} of {len(entries)}",
        )
    missing = [e.family for e in members if outcomes.get("export", e.family) is None]
    if missing:
        print(f"not exported: {', '.join(missing)}")
    return int(bool(missing))


def timing(candidates: Candidates, outcomes: Outcomes, options: argparse.Namespace) -> int:
    """Times each member of the shard that has no times; returns 1 if any of them fails, else 0.

    A member is exported first if its files are missing.
    """
    names = ("threads", "rounds", "seconds", "patience", "cap")
    plan = json.dumps({name: getattr(options, name) for name in names})
    entries = entries_of(candidates, candidates.members(outcomes.failed_exports()), options)
    failed = False
    for number, entry in enumerate(entries, 1):
        if outcomes.get("time", entry.family) and not options.again:
            continue
        place = f"{number} of {len(entries)}"
        files = [FOLDER / f"{entry.family}{suffix}" for suffix in (".onnx", ".npz")]
        if not all(file.is_file() for file in files):
            exported = _step(outcomes, "export", entry, (), place)
            if exported["outcome"] != "done":
                print(
                    f"{entry.family}: the export failed; scripts/breadth export adds a substitute"
                )
                failed = True
                continue
        arguments = (plan, "--precision", options.precision)
        failed |= _step(outcomes, "time", entry, arguments, place)["outcome"] != "done"
        for file in files if options.discard else ():
            file.unlink(missing_ok=True)
    return int(failed)


def entries_of(
    candidates: Candidates, members: Sequence[Entry], options: argparse.Namespace
) -> list[Entry]:
    """Returns the `members` in the shard of --shard; with --only, those of the named families."""
    entries = shard(members, candidates, *options.shard)
    return [entry for entry in entries if not options.only or entry.family in options.only]


def _step(
    outcomes: Outcomes, step: str, entry: Entry, arguments: tuple[str, ...], place: str
) -> Outcome:
    """Runs a step of an architecture in a process of its own; returns its outcome.

    Prints a line, which begins with `place` ("3 of 60").
    """
    started = time.perf_counter()
    print(f"{place}: {entry.family} ({entry.model}): {step} ...", end=" ", flush=True)
    script = Path(__file__).resolve().parent.parent / "breadth"
    command = (script, "one", step, entry.family, *arguments)
    outcome = in_process(outcomes, step, entry.family, command, LIMITS[step])
    ratio = report.ratio_of(outcome) if step == "time" else None
    summary = outcome["outcome"] if ratio is None else f"ratio {ratio:.2f}"
    why = f": {outcome['why']}" if "why" in outcome else ""
    print(f"{summary} ({time.perf_counter() - started:.0f} s){why}", flush=True)
    return outcome


def one(candidates: Candidates, outcomes: Outcomes, options: argparse.Namespace) -> int:
    """Runs the step `options.what` of the architecture of `options.family`, in this process.

    Its outcome goes to `outcomes`. Raises the error of a step that fails.
    """
    entry = next(entry for entry in candidates.entries() if entry.family == options.family)
    work = {"export": _export, "time": _time}[options.what]
    try:
        plan = {**json.loads(options.plan), "precision": options.precision}
        outcome = {"outcome": "done", **work(entry, plan)}
    except Exception as error:  # a library may raise any error; the table shows it as the reason
        outcome = {"outcome": "failed", "why": reason(error)}
        outcomes.put(options.what, entry.family, outcome)
        raise
    outcomes.put(options.what, entry.family, outcome)
    return 0


def _check_libraries() -> None:
    from zoo.registries import import_transformers

    import_transformers()


def reason(error: BaseException) -> str:
    """Returns the error and its cause as one line, without paths of this machine."""
    while error.__cause__ is not None and isinstance(error, ImportError):
        # A lazy import raises an ImportError that says nothing; its cause has the reason.
        error = error.__cause__
    errors = [error] if error.__cause__ is None else [error, error.__cause__]
    lines = [
        f"{type(link).__name__}: " + " | ".join(filter(None, map(str.strip, str(link).split("\n"))))
        for link in errors
    ]
    return " <- ".join(line[:300] for line in lines).replace(f"{ROOT}/", "")


def _export(entry: Entry, plan: dict[str, Any]) -> dict[str, Any]:
    from zoo.export import export

    return export(entry, FOLDER)


def _time(entry: Entry, plan: dict[str, Any]) -> dict[str, Any]:
    from zoo.timing import TimingSettings, measure

    return measure(FOLDER / entry.family, TimingSettings(**plan))


def tabling(candidates: Candidates, outcomes: Outcomes, options: argparse.Namespace) -> int:
    """Writes the table as text, JSON and a chart; returns the exit code."""
    results = report.collect(candidates, outcomes)
    folder = RESULTS if options.publish else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in _files(results):
        _table(folder, options, suffix).write_text(content)
    print(report.table(results), end="")
    return int(options.check and not all(met for _, met in report.goals(results)))


def _files(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield ".json", json.dumps(results, indent=1) + "\n"
    yield ".txt", report.table(results)
    yield ".svg", report.chart(results)


def _other_versions(candidates: Candidates) -> str | None:
    """Returns an error text if a library's version differs from that with which LIST was drawn.

    Returns None if all versions are equal.
    """
    from importlib.metadata import version

    for name, expected in candidates.versions.items():
        if version(name) != expected:
            return f"the list was drawn from {name} {expected}, {version(name)} is installed"
    return None
