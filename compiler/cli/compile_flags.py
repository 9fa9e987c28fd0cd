"""The flags of a compile, from the one list of options."""

from collections.abc import Callable
from typing import Any

import click
from tcc.cli.choices import Command
from tcc.options import FLAGS, Flag, Options, read_options


def compile_flags(command: Command) -> Command:
    """Adds every flag of `tcc.options.FLAGS`; the command gets their values as keywords."""
    for flag in reversed(FLAGS):
        command = _flag(flag)(command)
    return command


def _flag(flag: Flag) -> Callable[[Command], Command]:
    kind: dict[str, Any] = {"metavar": flag.metavar, "multiple": flag.repeated}
    if not flag.metavar:
        kind = {"is_flag": True, "flag_value": not flag.spelling.startswith("--no-")}
    return click.option(flag.spelling, flag.name, default=None, help=flag.help, **kind)


def chosen_options(values: dict[str, Any]) -> Options:
    """Returns options from the keywords of `compile_flags`; raises UserError naming the flag."""
    return read_options(values, python=False)
