"""`tcc tune`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag
from tcc.cli.compile_flags import chosen_options, compile_flags
from tcc.cli.show import print_json, progress, say
from tcc.errors import UserError
from tcc.later import later
from tcc.options import Options

if TYPE_CHECKING:
    from tcc import driver
    from tcc.cli import sweeping
    from tcc.tune import lock as locks
    from tcc.tune import lock_file, pin, verdicts
else:
    driver, locks = later("tcc.driver"), later("tcc.tune.lock")
    lock_file, pin = later("tcc.tune.lock_file"), later("tcc.tune.pin")
    sweeping, verdicts = later("tcc.cli.sweeping"), later("tcc.tune.verdicts")

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


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--pin",
    "is_pin",
    is_flag=True,
    help="Writes the choice of every decision of the compile, without measuring.",
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
@click.option("--threads", type=click.IntRange(1), help="Threads of the runs; default: all CPUs.")
@compile_flags
@json_flag
def tune(
    model: Path,
    lock: Path,
    seconds: float,
    data: tuple[str, ...],
    threads: int | None,
    as_json: bool,
    *,
    is_pin: bool,
    **choices: Any,
) -> None:
    """Measures other schedules of the kernels of the model file MODEL on this machine, and writes
    those that are clearly faster into a lock, which tcc compile --tuned reads.

    \b
    Example:
      tcc tune model.onnx --time 10m
      tcc tune model.onnx --pin --lock tcc.lock.json --cpu x86-64-v3
      tcc compile model.onnx --tuned tcc.lock.json
      tcc compile model.onnx --tuned tcc.lock.json --require-tuned 1%

    Kernels are timed in the running model. A choice changes only if it is faster by 2 % in two sets
    of rounds. Ctrl-C keeps what was confirmed. With --pin nothing is measured: a later version of
    tcc then makes the same kernels.

    Give the options that tcc compile gets: the lock has a section for each target with its number
    of cores.
    """
    options = chosen_options(choices)
    _check(options)
    if is_pin:
        _pin(model, lock, options, as_json=as_json)
    else:
        _measure(model, lock, options, seconds, data, threads or 0, as_json=as_json)


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


def _measure(
    model: Path,
    lock: Path,
    options: Options,
    seconds: float,
    data: Sequence[str],
    threads: int,
    *,
    as_json: bool,
) -> None:
    """Writes the verdicts of a sweep into the lock; raises SlowMachine if too few rounds count."""
    if lock.exists():
        lock_file.read_lock(lock, "--lock")  # a damaged lock is an error before the sweep
    result, interrupted = sweeping.swept(model, options, seconds, data, threads)
    entries = [(result.home, entry) for entry in result.entries]
    lock_file.update_lock(lock, lambda current: current.with_measured(entries))
    counts = {v: sum(e.verdict == v for e in result.entries) for v in locks.VERDICTS}
    facts = {"path": str(lock), "model": result.model, **counts}
    if as_json:
        print_json(facts)
    for entry in () if as_json else result.entries:
        if entry.gain is not None:
            say(f"  {entry.gain[0]:.3f} times as fast (at least {entry.gain[1]:.3f}): {entry.op}")
    if not as_json:
        counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        model_text = (
            "" if result.model is None else f", the model {result.model[0]:.3f} times as fast"
        )
        say(f"{lock}: {counted or 'no kernels'}{model_text}")
    if result.slow:
        raise verdicts.SlowMachine(
            "no choice changed",
            where=str(model),
            why="other work slowed the machine down in more than half of the rounds",
            hint="tune again when less runs beside it",
        )
    if interrupted:
        raise KeyboardInterrupt


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
