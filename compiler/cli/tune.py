"""`tcc tune`."""

from dataclasses import replace
from pathlib import Path
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
    from tcc.tune import lock as locks
    from tcc.tune import lock_file, pin
else:
    driver, locks = later("tcc.driver"), later("tcc.tune.lock")
    lock_file, pin = later("tcc.tune.lock_file"), later("tcc.tune.pin")


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
@compile_flags
@json_flag
def tune(model: Path, lock: Path, as_json: bool, *, is_pin: bool, **choices: Any) -> None:
    """Writes the compiler's choices for the model file MODEL into a lock, which tcc compile --tuned
    reads. A later version of tcc then makes the same kernels.

    \b
    Example:
      tcc tune model.onnx --pin
      tcc tune model.onnx --pin --lock tcc.lock.json --cpu x86-64-v3
      tcc compile model.onnx --tuned tcc.lock.json --cpu x86-64-v3
      tcc compile model.onnx --tuned tcc.lock.json --require-tuned 1%

    Give the options that tcc compile gets: the lock has a section for each target with its number
    of cores. Choices that the lock has already stay as they are.
    """
    options = chosen_options(choices)
    _check(options, is_pin=is_pin)
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


def _check(options: Options, *, is_pin: bool) -> None:
    """Raises UserError for options that a pin does not have."""
    if not is_pin:
        raise UserError(
            "tcc tune does not measure yet", where="tcc tune", hint="pin the choices with --pin"
        )
    refused = {
        "--tuned": (options.tuned is not None, "the lock to read is the one of --lock"),
        "--require-tuned": (options.require_tuned is not None, "tcc compile takes it"),
        "--ranks": (options.ranks != (1,), "a lock is for models on one rank"),
        "--stop-after": (bool(options.stop_after), "a pin is of the whole compile"),
    }
    for flag, (is_given, why) in refused.items():
        if is_given:
            raise UserError("tcc tune does not take this option", where=flag, why=why)
