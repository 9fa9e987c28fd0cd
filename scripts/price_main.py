"""Compares the prices of a model's kernels with measured times, for `scripts/price_check`."""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from environment import ROOT
from peaks import Calm, Peaks
from price_kernels import ModelKernel, Planned, planned, sample
from price_report import completed, met, summary, table, together
from price_times import KernelCode, RoundEffort, Rounds, Schedules
from processor import processor_line
from tcc.errors import TccError, UserError
from tcc.options import read_options
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.gpu import cost
from tcc.temporary import temporary_folder
from whole import write_whole

from gpu.fit import CONSTANTS, fit_table, timed_rows

TIMES_FOLDER = ROOT / "build" / "price_check"
RESULTS = ROOT / "scripts" / "results"
_FILES = (".onnx", ".pt2")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class ModelPrices:
    """Prices kernels of a model on several numbers of threads.

    `of` returns a map from the number of threads, as text, to the price of a schedule.
    """

    def __init__(self, model: Planned, threads: Sequence[int]) -> None:
        machine, pairs = model.backend.machine, model.backend.target.profile.multiplies_pairs
        self._pricers = {
            str(n): Pricer(replace(machine, cores=n), model.weights, pairs=pairs) for n in threads
        }

    def of(self, group: Any, schedule: Any) -> dict[str, Price]:
        return {n: pricer.price(group, schedule) for n, pricer in self._pricers.items()}


class Clock:
    """Times kernels on each number of `threads`, and keeps the times in TIMES_FOLDER.

    Temporary files and processes end with `stack`.
    """

    def __init__(
        self, arguments: argparse.Namespace, threads: Sequence[int], stack: ExitStack
    ) -> None:
        self._again, self._effort = (
            arguments.again,
            RoundEffort(arguments.rounds, arguments.seconds),
        )
        self._threads, self._calm, self._stack = threads, Calm(arguments.patience), stack
        self._folder: Path | None = None
        self._peaks: Peaks | None = None

    def times(self, code: KernelCode, processor: str) -> dict[str, Rounds]:
        """Returns {number of threads, as text: the timing rounds of the kernel}.

        The rounds are read from a file if the same code was timed on the same `processor` before.
        """
        key_text = repr((code.digest, processor, self._threads, self._effort))
        times_file = TIMES_FOLDER / f"{hashlib.sha256(key_text.encode()).hexdigest()[:32]}.json"
        if times_file.is_file() and not self._again:
            return {n: Rounds(**rounds) for n, rounds in json.loads(times_file.read_text()).items()}
        running = Schedules(code, self._begin())
        measured = {str(n): running.rounds(self._effort, n, self._calm) for n in self._threads}
        write_whole(times_file, json.dumps({n: asdict(rounds) for n, rounds in measured.items()}))
        return measured

    def _begin(self) -> Path:
        """Starts the patience anew; returns a folder for the files of kernels."""
        if self._folder is None or self._peaks is None:
            self._folder = self._stack.enter_context(temporary_folder("tcc-price-"))
            peaks = Peaks(self._folder, max(self._threads))
            self._peaks = self._stack.enter_context(peaks)
            self._calm.begin(self._peaks)
        else:
            self._calm.begin(self._peaks, looks=0)
        return self._folder


def check(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Prices and times the kernels of a model; returns the results as JSON.

    Raises TccError if the model cannot be compiled.
    """
    option_texts = {"precision": arguments.precision, "machine": arguments.machine}
    options = read_options({name: value for name, value in option_texts.items() if value})
    threads = sorted({1, arguments.threads})
    say(f"{path.stem}: planning")
    model = planned(path, options)
    processor, prices = processor_line(model.backend.target), ModelPrices(model, threads)
    kernels, left_out = kernels_to_time(model, prices, arguments)
    rows = []
    with ExitStack() as stack:
        clock = Clock(arguments, threads, stack)
        for number, kernel in enumerate(kernels, 1):
            drawn = sample(model, kernel, arguments.sample, arguments.seed)
            count = f"{len(drawn.candidates)} of {drawn.size} schedules"
            say(f"{path.stem} {number}/{len(kernels)}: {kernel.name}, {count}")
            code = KernelCode(drawn.candidates, model.backend.target, model.weights)
            times = clock.times(code, processor)
            priced = [prices.of(c.group, c.schedule) for c in drawn.candidates]
            rows.append(
                {
                    "name": kernel.name,
                    "launches": kernel.launches,
                    "space": drawn.size,
                    "refused": drawn.refused,
                    "schedules": [str(c.schedule) for c in drawn.candidates],
                    "prices": {n: [p[n].seconds for p in priced] for n in times},
                    "parts": {n: [asdict(p[n]) for p in priced] for n in times},
                    "seconds": {n: rounds.medians() for n, rounds in times.items()},
                    "calm": {n: rounds.calm for n, rounds in times.items()},
                }
            )
    return completed(
        {
            "processor": processor,
            "machine": model.backend.machine.name,
            "date": date.today().isoformat(),
            "model": path.stem,
            "precision": options.precision,
            **{name: getattr(arguments, name) for name in ("sample", "seed", "rounds")},
            "threads": threads,
            "left_out": left_out,
            "kernels": rows,
        }
    )


def kernels_to_time(
    model: Planned, prices: ModelPrices, arguments: argparse.Namespace
) -> tuple[list[ModelKernel], dict[str, str]]:
    """Returns (kernels to time, map from the names of all remaining kernels to the reasons)."""
    parts = [part for part in arguments.only.split(",") if part]
    prices_by_kernel = {
        k: k.launches * prices.of(k.bound.group, k.bound.schedule)[str(arguments.threads)].seconds
        for k in model.kernels
    }
    min_price = 0.0 if parts else arguments.share * sum(prices_by_kernel.values())
    named = [k for k in model.kernels if not parts or any(part in k.name for part in parts)]
    if not named:
        names = "\n".join(kernel.name for kernel in model.kernels)
        where = f"--only {arguments.only}"
        raise UserError("no kernel has such a name", where=where, why=f"there are\n{names}")
    left_out = {}
    for kernel in named:
        if kernel.bound.kernel.sizes:
            left_out[kernel.name] = "of symbolic sizes"
        elif prices_by_kernel[kernel] < min_price:
            left_out[kernel.name] = f"each below {arguments.share:.1%} of the model's price"
    return [kernel for kernel in named if kernel.name not in left_out], left_out


def model_files(names: Sequence[str]) -> Iterator[Path]:
    """Yields the ONNX file of each of `names`, which are files or models of the manifest.

    Models are built if needed. Without names, yields the files of all models of the manifest.
    """
    if names and all(name.endswith(_FILES) for name in names):
        yield from map(Path, names)
        return
    from models.build import DEFAULT_OUT, build  # imported here, because only this needs torch
    from models.manifest import manifest

    for name in names or manifest():
        if not name.endswith(_FILES) and name not in manifest():
            hint = f"give a file, or one of {', '.join(manifest())}"
            raise UserError("there is no such model", where=name, hint=hint)
        yield Path(name) if name.endswith(_FILES) else build(name, DEFAULT_OUT)


def gpu_fit(path: Path) -> str:
    """Returns the constants of GPU prices that fit the results of `gpu_check`, as text."""
    constants = {name: getattr(cost, name) for places in CONSTANTS.values() for name, _ in places}
    results = json.loads(path.read_text())
    head = "REHEARSAL: these constants say nothing\n" if results["rehearsal"] else ""
    return head + fit_table(timed_rows(results), constants)


def parse(page: str | None, words: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or files; default: all")
    parser.add_argument("--only", default="", metavar="A,B", help="kernels by parts of their names")
    parser.add_argument(
        "--share", type=float, default=0.01, help="of the price, below which a kernel is not timed"
    )
    parser.add_argument(
        "--sample", type=int, default=32, help="schedules of a kernel beside the chosen one"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a schedule in one round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds a kernel may wait for a calm machine"
    )
    parser.add_argument("--precision", default="", help="as of tcc compile")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="as of tcc compile")
    parser.add_argument("--again", action="store_true", help="measures what is kept, too")
    parser.add_argument("--json", action="store_true", help="prints results as JSON")
    parser.add_argument(
        "--gpu", type=Path, metavar="FILE", help="fits GPU prices to results of scripts/gpu_check"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 where prices miss what is wanted"
    )
    arguments = parser.parse_args(words)
    if min(arguments.rounds, arguments.threads, arguments.sample) < 1 or arguments.seconds <= 0:
        parser.error("--rounds, --threads, --sample and --seconds are positive")
    if not 0 <= arguments.share < 1 or arguments.patience < 0:
        parser.error("--share is a part of 1, --patience is not negative")
    return arguments


def main(page: str | None, words: Sequence[str] | None = None) -> int:
    """Returns the exit code; `page` is the text of --help."""
    arguments = parse(page, words)
    if arguments.gpu is not None:
        print(gpu_fit(arguments.gpu), end="")
        return 0
    results = []
    try:
        for path in model_files(arguments.models):
            results.append(check(path, arguments))
            if not arguments.json:
                print(table(results[-1]), flush=True)
    except TccError as error:
        say(str(error))
        return error.exit_code
    print(json.dumps(results, indent=1) if arguments.json else summary(results), end="", flush=True)
    if not arguments.models and not arguments.only:
        stem = "-".join(filter(None, ("price_check", arguments.precision)))
        text = "\n".join((*map(table, results), summary(results)))
        (RESULTS / f"{stem}.txt").write_text(text)
    return int(arguments.check and not met(together(results)))
