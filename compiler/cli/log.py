"""How much commands say beside their results: -q, -v, --log-json, and the variable TCC_LOG."""

import json
import os
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click
from tcc.errors import UserError

_VARIABLE = "TCC_LOG"
# The flags of each level, and their help.
_LEVELS = MappingProxyType(
    {
        "quiet": ("-q", "--quiet", "Print results and errors alone."),
        "verbose": ("-v", "--verbose", "Print each stage of a compile, and when it starts."),
        "json": ("--log-json", "Print stages, notes and errors on stderr as lines of JSON."),
    }
)


@dataclass(slots=True)
class Log:
    """The level of the command that runs: a key of `_LEVELS`, or "" for the default."""

    level: str = ""


LOG = Log()


def read_level() -> None:
    """Sets the level from TCC_LOG; raises UserError for a value that is no level."""
    LOG.level = ""
    level = os.environ.get(_VARIABLE, "")
    if level and level not in _LEVELS:
        raise UserError(
            "there is no such level of messages",
            where=f"{_VARIABLE}={level}",
            hint=f"set it to {', '.join(_LEVELS)}, or unset it",
        )
    LOG.level = level


def level_flags() -> list[click.Parameter]:
    """Returns the flags that set the level; the last of a command line counts."""
    return [
        click.Option(flags, is_flag=True, expose_value=False, callback=_setter(level), help=text)
        for level, (*flags, text) in _LEVELS.items()
    ]


def _setter(level: str) -> Any:
    def set_level(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            LOG.level = level

    return set_level


def print_event(kind: str, **fields: Any) -> None:
    """Prints an event as a line of JSON on stderr; `time` counts seconds since 1970."""
    event = {"time": round(time.time(), 3), "event": kind, **fields}
    click.echo(json.dumps(event), err=True)
