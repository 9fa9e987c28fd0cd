"""Command-line flags that several commands share."""

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

import click
from tcc.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1)


class _Output(click.Path):
    """A path to write; it refuses `-`, because output does not go to standard output."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if str(value) == "-":
            raise UserError(
                "this output goes to a path, and not to standard output",
                where=f"{param.opts[0]} -",
                hint="name it, or write ./- for the name",
            )
        return super().convert(value, param, ctx)


OUTPUT = _Output()


class Seconds(click.FloatRange):
    """A time above zero and up to a day: clocks cannot wait for arbitrarily many seconds."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, max=86400, min_open=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds = float(super().convert(value, param, ctx))
        if isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


def switch(*words: str) -> Callable[[Command], Command]:
    """Returns the decorator that adds a flag without a value to a command.

    `words` are its spelling, the name of its parameter if that is another one, and its help.
    """
    *names, text = words
    return click.option(*names, is_flag=True, help=text)


json_flag = switch("--json", "as_json", "Print JSON.")


def rank_flags(text: str) -> Callable[[Command], Command]:
    """Returns the decorator that adds --nproc, whose help is `text`, and --pin to a command."""

    def add(command: Command) -> Command:
        pin = switch("--pin", "With --nproc: each rank has CPUs of its own.")
        return click.option("--nproc", type=click.IntRange(1, 64), help=text)(pin(command))

    return add


def run_flags(command: Command) -> Command:
    """Adds the flags of commands that run a model: its inputs, their seed and the threads."""
    threads = click.option(
        "--threads", type=COUNT, help="Threads of the kernels; default: all CPUs."
    )
    seed = click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed of random inputs; where it is given, `run` draws a model's random numbers with "
        "it too.",
    )
    inputs = click.option(
        "--input",
        "-i",
        "inputs",
        multiple=True,
        metavar="NAME=VALUE",
        help="An input: NAME=@x.npy, or NAME=2x3xf32=1 for a filled array, or NAME=2x3xf32 for a "
        "random one; NAME=@x.npz:KEY of an archive.  Inputs that are not given are random, their "
        "symbolic sizes small ones that the model can take.",
    )
    return inputs(seed(threads(command)))
