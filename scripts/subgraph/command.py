"""Runs the command line of `scripts/subgraphs`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections.abc import Sequence

from beside import PairSettings
from environment import ROOT
from peaks import Calm, Peaks
from subgraph import listing
from subgraph.families import SWEEP, SubgraphCase, cases
from subgraph.measure import Bench, measure
from subgraph.results import (
    FAULTS,
    OUTCOMES,
    Conditions,
    ResultStore,
    SubgraphResult,
    table,
)
from tcc.options import Options
from tcc.target import targets_text
from tcc.variants import resolve_targets
from whole import write_whole

from onnx_suite.report import code_key

SCRATCH = ROOT / "build" / "subgraphs"
TABLE = ROOT / "scripts" / "results" / "subgraphs.txt"


def main(page: str) -> int:
    """Runs the command whose help is `page`; returns its exit code."""
    # SIGTERM raises an exception, so that temporary folders are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(page)
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("\nstopped; run the same command to resume")
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.write_list:
        listing.LIST.write_text(listing.text(), encoding="utf-8")
        return 0
    selected = [case for case in _selected_cases(options) if case.fits]
    if options.list:
        print(listing.text(_selected_cases(options)), end="")
        return 0
    if changes := list(listing.changed()):
        print("the list differs from the committed list; if this is intended, write it with")
        print("scripts/subgraphs --write-list", *changes, sep="\n")
        return 1
    if not selected:
        print("no graph of the list has such a name")
        return 2
    plan = PairSettings(options.threads, options.rounds, options.seconds)
    target = targets_text(resolve_targets(Options()))
    conditions = Conditions(target, code_key(ROOT), plan)
    store = ResultStore(SCRATCH / "results", conditions)
    _measure_all(selected, store, plan, options)
    return _report(selected, store, conditions, options)


def _measure_all(
    selected: Sequence[SubgraphCase],
    store: ResultStore,
    plan: PairSettings,
    options: argparse.Namespace,
) -> None:
    """Measures the cases that have no result yet, and prints an estimate of the time left."""
    results = {case.name: store.get(case) for case in selected}
    to_do = [c for c in selected if not _stays(results[c.name], options.again)]
    print(f"{len(selected)} graphs, {len(selected) - len(to_do)} measured before", flush=True)
    if not to_do:
        return
    started = time.monotonic()
    with Peaks(SCRATCH, plan.threads) as peaks:
        bench = Bench(plan, Calm(options.patience), peaks, options.cap)
        for number, case in enumerate(to_do, 1):
            earlier = store.earlier(case)
            earlier = earlier if _stays(earlier, options.again) else None
            folder = SCRATCH / "graphs" / case.file
            result = measure(case, folder, bench, options.keep, earlier)
            store.put(case, result)
            remaining = (time.monotonic() - started) / number * (len(to_do) - number)
            place = f"[{number}/{len(to_do)}, {remaining / 60:.0f} min left]"
            print(place, case.name, _summary(result), flush=True)


def _stays(result: SubgraphResult | None, again: Sequence[str]) -> bool:
    return result is not None and "all" not in again and result.outcome not in again


def _summary(result: SubgraphResult) -> str:
    if result.ratio is None:
        return f"{OUTCOMES[result.outcome].upper()}: {result.why}"
    times = f"{result.tcc * 1e3:.4f} ms, ort {result.ort * 1e3:.4f} ms"
    return f"{result.ratio:.2f}  ({times})"


def _report(
    selected: Sequence[SubgraphCase],
    store: ResultStore,
    conditions: Conditions,
    options: argparse.Namespace,
) -> int:
    """Prints the table of the selected cases and writes the table of all cases to a file.

    The file is in scripts/results if every case has a result. Returns the exit code.
    """
    results = {case.name: r for case in selected if (r := store.get(case)) is not None}
    text = table(results, len(selected), conditions)
    print(f"\n{text}", end="")
    fitting = [case for case in cases() if case.fits]
    all_results = {case.name: r for case in fitting if (r := store.get(case)) is not None}
    path = TABLE if len(all_results) == len(fitting) else SCRATCH / "subgraphs.txt"
    write_whole(path, table(all_results, len(fitting), conditions))
    print(f"\nall results: {path.relative_to(ROOT)}")
    missed = len(results) < len(selected) or any(
        r.below or r.ratio is None for r in results.values()
    )
    faults = any(r.outcome in FAULTS for r in results.values())
    return int(faults or (options.check and missed))


def _selected_cases(options: argparse.Namespace) -> list[SubgraphCase]:
    part, parts = options.shard
    shard_cases = cases(options.sweep)[part::parts]
    return [case for case in shard_cases if options.only.search(case.name)]


def _parse(page: str) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    add = parser.add_argument
    add("--only", type=_pattern, default=_pattern(""), metavar="REGEX", help="graphs by name")
    add("--shard", type=_shard, default=(0, 1), metavar="K/N", help="every N-th, from the K-th on")
    add("--sweep", type=int, default=SWEEP, metavar="COUNT",
        help=f"matmuls drawn of M, K, N from 1 to 70; default: {SWEEP}")  # fmt: skip
    add("--again", type=lambda text: text.split(","), default=[], metavar="OUTCOMES",
        help=f"outcomes to measure again: all, or {', '.join(OUTCOMES)}")  # fmt: skip
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=0.2, help="time of one runtime in one round; default: 0.2")
    add("--cap", type=float, default=300.0, help="most seconds of a step")
    add("--patience", type=float, default=20.0, help="most seconds to wait for a calm machine")
    add("--keep", action="store_true", help="leave models, inputs and artifacts in build/subgraphs")
    add("--list", action="store_true", help="print the list, time nothing")
    add("--write-list", action="store_true", help="write the list that is committed")
    add("--check", action="store_true", help="exit code 1 also where a graph is below or missing")
    options = parser.parse_args()
    if min(options.threads, options.rounds) < 1 or min(options.seconds, options.cap) <= 0:
        parser.error("--threads, --rounds, --seconds and --cap must be positive")
    if options.patience < 0 or options.sweep < 0:
        parser.error("--patience and --sweep must not be negative")
    unknown = [word for word in options.again if word not in {"all", *OUTCOMES}]
    if unknown:
        parser.error(f"no outcome {unknown[0]!r}; there are: all, {', '.join(OUTCOMES)}")
    return options


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 0 to below N")
    return int(match[1]), int(match[2])
