"""The command line of `scripts/subgraphs`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections.abc import Sequence

from beside import Plan
from environment import ROOT
from peaks import Calm, Peaks
from subgraph import listing
from subgraph.families import SWEEP, Case, cases
from subgraph.measure import Bench, measure
from subgraph.results import (
    FAULTS,
    OUTCOMES,
    Conditions,
    Result,
    Store,
    table,
)
from tcc.driver import resolve_targets
from tcc.options import Options
from tcc.target import targets_text
from whole import write_whole

from onnx_suite.report import code_key

SCRATCH = ROOT / "build" / "subgraphs"
TABLE = ROOT / "scripts" / "results" / "subgraphs.txt"


def main(page: str) -> int:
    """Runs the command whose help is `page`; returns its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves no temporary folders either
    chosen = _parse(page)
    try:
        return _run(chosen)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130


def _run(chosen: argparse.Namespace) -> int:
    if chosen.write_list:
        listing.LIST.write_text(listing.text(), encoding="utf-8")
        return 0
    wanted = [case for case in _chosen(chosen) if case.fits]
    if chosen.list:
        print(listing.text(_chosen(chosen)), end="")
        return 0
    if changes := list(listing.changed()):
        print("the list differs from the committed one; if that is meant, write it anew by")
        print("scripts/subgraphs --write-list", *changes, sep="\n")
        return 1
    if not wanted:
        print("no graph of the list is asked for")
        return 2
    plan = Plan(chosen.threads, chosen.rounds, chosen.seconds)
    target = targets_text(resolve_targets(Options()))
    conditions = Conditions(target, code_key(ROOT), plan)
    store = Store(SCRATCH / "results", conditions)
    _measure_all(wanted, store, plan, chosen)
    return _report(wanted, store, conditions, chosen)


def _measure_all(
    wanted: Sequence[Case], store: Store, plan: Plan, chosen: argparse.Namespace
) -> None:
    """Measures what has no result yet, and says how long the rest may take."""
    known = {case.name: store.get(case) for case in wanted}
    to_do = [c for c in wanted if not _stays(known[c.name], chosen.again)]
    print(f"{len(wanted)} graphs, {len(wanted) - len(to_do)} measured before", flush=True)
    if not to_do:
        return
    started = time.monotonic()
    with Peaks(SCRATCH, plan.threads) as peaks:
        bench = Bench(plan, Calm(chosen.patience), peaks, chosen.cap)
        for number, case in enumerate(to_do, 1):
            earlier = store.earlier(case)
            earlier = earlier if _stays(earlier, chosen.again) else None
            folder = SCRATCH / "graphs" / case.file
            result = measure(case, folder, bench, chosen.keep, earlier)
            store.put(case, result)
            left = (time.monotonic() - started) / number * (len(to_do) - number)
            place = f"[{number}/{len(to_do)}, {left / 60:.0f} min left]"
            print(place, case.name, _said(result), flush=True)


def _stays(result: Result | None, again: Sequence[str]) -> bool:
    return result is not None and "all" not in again and result.outcome not in again


def _said(result: Result) -> str:
    if result.ratio is None:
        return f"{OUTCOMES[result.outcome].upper()}: {result.why}"
    times = f"{result.tcc * 1e3:.4f} ms, ort {result.ort * 1e3:.4f} ms"
    return f"{result.ratio:.2f}  ({times})"


def _report(
    wanted: Sequence[Case], store: Store, conditions: Conditions, chosen: argparse.Namespace
) -> int:
    """Prints the table of what was asked for; writes that of the whole list where all of it has
    results.  Returns the exit code."""
    found = {case.name: r for case in wanted if (r := store.get(case)) is not None}
    text = table(found, len(wanted), conditions)
    print(f"\n{text}", end="")
    whole = [case for case in cases() if case.fits]
    every = {case.name: r for case in whole if (r := store.get(case)) is not None}
    path = TABLE if len(every) == len(whole) else SCRATCH / "subgraphs.txt"
    write_whole(path, table(every, len(whole), conditions))
    print(f"\nall results: {path.relative_to(ROOT)}")
    missed = len(found) < len(wanted) or any(r.below or r.ratio is None for r in found.values())
    faults = any(r.outcome in FAULTS for r in found.values())
    return int(faults or (chosen.check and missed))


def _chosen(chosen: argparse.Namespace) -> list[Case]:
    part, parts = chosen.shard
    listed = cases(chosen.sweep)[part::parts]
    return [case for case in listed if chosen.only.search(case.name)]


def _parse(page: str) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    add = parser.add_argument
    add("--only", type=_pattern, default=_pattern(""), metavar="REGEX", help="graphs by name")
    add("--shard", type=_shard, default=(0, 1), metavar="K/N", help="every N-th, from the K-th on")
    add("--sweep", type=int, default=SWEEP, metavar="COUNT",
        help=f"matmuls drawn of M, K, N from 1 to 70; default: {SWEEP}")  # fmt: skip
    add("--again", type=lambda text: text.split(","), default=[], metavar="OUTCOMES",
        help=f"measure these anew: all, or {', '.join(OUTCOMES)}")  # fmt: skip
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=0.2, help="of one runtime in one round; default: 0.2")
    add("--cap", type=float, default=300.0, help="seconds that any one step may take")
    add("--patience", type=float, default=20.0, help="seconds a graph may wait for a calm machine")
    add("--keep", action="store_true", help="leave models, inputs and artifacts in build/subgraphs")
    add("--list", action="store_true", help="print the list, time nothing")
    add("--write-list", action="store_true", help="write the list that is committed")
    add("--check", action="store_true", help="exit code 1 also where a graph is below or missing")
    chosen = parser.parse_args()
    if min(chosen.threads, chosen.rounds) < 1 or min(chosen.seconds, chosen.cap) <= 0:
        parser.error("--threads, --rounds, --seconds and --cap are positive")
    if chosen.patience < 0 or chosen.sweep < 0:
        parser.error("--patience and --sweep are not negative")
    unknown = [word for word in chosen.again if word not in {"all", *OUTCOMES}]
    if unknown:
        parser.error(f"no outcome {unknown[0]!r}; there are: all, {', '.join(OUTCOMES)}")
    return chosen


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
