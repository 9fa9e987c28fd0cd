"""`tcc tune`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from tcc import __version__
from tcc.cli.choices import COUNT, OUTPUT, PATH, json_flag, switch
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.later_modules import check as checks
from tcc.cli.later_modules import driver, from_records, lock_file, pin, summary, sweeping
from tcc.cli.later_modules import lock as locks
from tcc.cli.later_modules import records as log
from tcc.cli.progress import progress
from tcc.cli.show import print_json, say, say_all
from tcc.errors import UserError
from tcc.options import Options
from tcc.zipped import zip_equal

if TYPE_CHECKING:
    from tcc.tune import verdicts

_UNITS: Mapping[str, float] = MappingProxyType({"s": 1.0, "m": 60.0, "h": 3600.0})
_DAY = 86400.0


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time of up to a day, as in 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        text = str(value)
        digits, suffix = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "s")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 6:
            self.fail(f"{text!r} is no time such as 90s, 10m or 2h", param, ctx)
        seconds = int(digits) * _UNITS[suffix]
        if not 0 < seconds <= _DAY:
            self.fail(f"{text!r} is not above zero and up to a day", param, ctx)
        return seconds


class Shard(click.ParamType):  # type: ignore[type-arg]
    """A part of the sites, as in 2/5: the second of five."""

    name = "shard"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        try:
            return log.shard_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("models", type=PATH, metavar="MODEL", nargs=-1, required=True)
@switch(
    "--pin",
    "is_pin",
    "Writes the choice of every decision of the compile, without measuring.",
)
@click.option(
    "--lock",
    type=OUTPUT,
    default=Path("tcc.lock.json"),
    show_default=True,
    metavar="FILE",
    help="The lock. Entries of other models and targets stay in it.",
)
@click.option(
    "--time",
    "seconds",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long to measure, as in 90s, 10m or 2h.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input of the measured runs, as for tcc run --input. The others are random.",
)
@click.option(
    "--records",
    type=OUTPUT,
    metavar="FILE",
    help="A file that gets a line for each measurement. What it has already is not measured again. "
    "Several processes may write it, and files can be concatenated.",
)
@click.option(
    "--shard",
    type=Shard(),
    metavar="K/N",
    help="Measures only part K of N of the kernels and decisions: N machines share the work.",
)
@click.option(
    "--from",
    "sources",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Decides from these files of records, without measuring.",
)
@switch(
    "--check",
    "is_check",
    "Exit code 1 if a kernel has no entry, or if an entry does not fit or is unused. Takes "
    "several MODELs, for a lock that they share. Measures nothing.",
)
@click.option("--threads", type=COUNT, help="Threads of the runs; default: all CPUs.")
@compile_flags
@json_flag
def tune(
    models: tuple[Path, ...],
    lock: Path,
    seconds: float,
    data: tuple[str, ...],
    records: Path | None,
    shard: tuple[int, int] | None,
    sources: tuple[Path, ...],
    threads: int | None,
    as_json: bool,
    *,
    is_pin: bool,
    is_check: bool,
    **choices: Any,
) -> int:
    """Measures other choices for the model file MODEL on this machine: schedules of its kernels,
    and decisions above schedules, such as derivations, joins and storage orders. It writes choices
    that are clearly faster into a lock, which tcc compile --tuned reads.

    \b
    Example:
      tcc tune model.onnx --time 10m
      tcc tune model.onnx --records a.jsonl --shard 1/2
      tcc tune model.onnx --from a.jsonl --from b.jsonl
      tcc tune model.onnx --check
      tcc tune model.onnx --pin --lock tcc.lock.json --cpu x86-64-v3
      tcc compile model.onnx --tuned tcc.lock.json
      tcc compile model.onnx --tuned tcc.lock.json --require-tuned 1%

    Kernels are timed in the running model, and other decisions by whole runs. A choice changes only
    if it is faster by 2 % in two sets of rounds. Ctrl-C keeps what was confirmed. With --pin
    nothing is measured: a later version of tcc then makes the same kernels.

    Give the options that tcc compile gets: the lock has a section for each target with its number
    of cores.
    """
    options = chosen_options(choices)
    _check(options)
    modes = {"--pin": is_pin, "--check": is_check, "--from": sources}
    _check_mode([flag for flag, value in modes.items() if value], records, shard)
    if is_check:
        return _show_problems(models, lock, options, as_json=as_json)
    if len(models) > 1:
        hint = "run the command for each model"
        raise UserError("only --check takes several models", where=models[1], hint=hint)
    if is_pin:
        _pin(models[0], lock, options, as_json=as_json)
    elif sources:
        _decide(models[0], lock, options, sources, as_json=as_json)
    else:
        how = seconds, data, threads or 0, records, shard or (1, 1)
        _measure(models[0], lock, options, how, as_json=as_json)
    return 0


def _check_mode(modes: Sequence[str], records: Path | None, shard: object) -> None:
    """Raises UserError for flags that do not go together."""
    measuring = {"--records": records, "--shard": shard}
    flags = [*modes, *(flag for flag, value in measuring.items() if value)]
    if modes and len(flags) > 1:
        hint = "leave one of them out"
        raise UserError("these options do not go together", where=" ".join(flags), hint=hint)


def _show_problems(models: Sequence[Path], lock: Path, options: Options, *, as_json: bool) -> int:
    """Prints what is wrong with the lock for the models; returns 1 if something is."""
    tuned = lock_file.read_lock(lock, "--lock")
    with progress("checking the lock"):
        ledgers = [driver.model_choices(m, replace(options, tuned=lock), fit=True) for m in models]
        changed = [m for m, ledger in zip_equal(models, ledgers) if ledger.changes]
        analytic = [driver.model_choices(m, options) for m in changed]
    rows = [*checks.problems(tuned, ledgers, analytic)]
    if as_json:
        print_json({"path": str(lock), "problems": rows})
    else:
        say_all(summary.problem_lines(lock, tuned.count, rows))
    return 1 if rows else 0


def _pin(model: Path, lock: Path, options: Options, *, as_json: bool) -> None:
    """Writes all choices of a compile into the lock. Choices that it has already stay."""
    old = lock_file.read_lock(lock, "--lock") if lock.exists() else locks.Lock()
    with progress(f"pinning {model.name}"):
        tuned = lock if old.count else None
        ledger = driver.model_choices(model, replace(options, tuned=tuned), fit=True)
        entries = [*pin.pinned(ledger, old)]
    # Another process may have changed the file meanwhile.
    result = lock_file.update_lock(lock, lambda current: current.with_entries(entries))
    facts = {"path": str(lock), "decisions": len(entries), "entries": result.count}
    if as_json:
        print_json(facts)
        return
    say(f"{lock}: {len(entries)} choices of {model.name} pinned, {result.count} entries")


def _decide(
    model: Path, lock: Path, options: Options, sources: Sequence[Path], *, as_json: bool
) -> None:
    """Writes the verdicts that records of earlier sweeps give into the lock."""
    every = log.read_records(sources)
    records = from_records.of_version(every, __version__)
    if len(records) < len(every):
        count = len(every) - len(records)
        say(f"{count} records of other versions of tcc are not used", err=True)
    with progress(f"reading {model.name}"):
        ledger = driver.model_choices(model, options, fit=True)
    for result in from_records.model_verdicts(records, ledger):
        _write(lock, result, as_json=as_json)


def _measure(
    model: Path, lock: Path, options: Options, how: tuple[Any, ...], *, as_json: bool
) -> None:
    """Writes the verdicts of a sweep into the lock; raises SlowMachine if too few rounds count.

    `how` are the last arguments of `sweeping.swept`.
    """
    if lock.exists():
        lock_file.read_lock(lock, "--lock")  # a damaged lock is an error before the sweep
    result, interrupted = sweeping.swept(model, options, *how)
    _write(lock, result, as_json=as_json)
    if interrupted:
        raise KeyboardInterrupt


def _write(lock: Path, result: "verdicts.Verdicts", *, as_json: bool) -> None:
    """Writes verdicts into the lock and prints them; raises SlowMachine if too few rounds count."""
    entries = [(result.home, entry) for entry in result.entries]
    lock_file.update_lock(lock, lambda current: current.with_measured(entries))
    if as_json:
        print_json(summary.verdict_facts(lock, result))
    else:
        say_all(summary.verdict_lines(lock, result))
    summary.check_speed(lock, result)


def _check(options: Options) -> None:
    """Raises UserError for options that a lock does not have."""
    refused = {
        "--tuned": (options.tuned is not None, "the lock to read is the one of --lock"),
        "--require-tuned": (options.require_tuned is not None, "tcc compile takes it"),
        "--ranks": (options.ranks != (1,), "a lock is for models on one rank"),
        "--stop-after": (bool(options.stop_after), "a lock is of the whole compile"),
    }
    for flag, (is_given, why) in refused.items():
        if is_given:
            raise UserError("tcc tune does not take this option", where=flag, why=why)
