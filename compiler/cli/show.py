"""Output of the commands: lines and tables that fit the terminal, notes, and JSON."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from tcc.cli.log import LOG, print_event
from tcc.errors import file_errors, printable
from tcc.runtime import terminal
from tcc.runtime.terminal import Table
from tcc.runtime.whole_files import write_whole


def say(line: str, *, err: bool = False) -> None:
    """Prints a line as `say_all` does."""
    say_all([line], err=err)


def say_all(items: Iterable[str | Table], *, err: bool = False) -> None:
    """Prints lines and tables; lines that are wider than the terminal are wrapped.

    Control characters are escaped. `err`: they are notes on stderr, which --quiet leaves out and
    --log-json prints as events.
    """
    stream = sys.stderr if err else sys.stdout
    escaped = (printable(i) if isinstance(i, str) else i.escaped(printable) for i in items)
    if err and LOG.level == "json":
        for text in terminal.lines(escaped, None):
            print_event("note", text=text)
    elif not err or LOG.level != "quiet":
        width, styles = terminal.columns(stream), terminal.has_styles(stream)
        for line in terminal.lines(escaped, width, styles=styles):
            print(line, file=stream, flush=True)


def print_text(text: str) -> None:
    """Prints a text whose lines fit a terminal; a file gets it as it is."""
    if sys.stdout.isatty():
        say_all(text.expandtabs().splitlines())
    else:
        click.echo(text)


def write_text(output: Path, what: str, text: str) -> None:
    """Writes a file completely or not at all; raises UserError if `what` cannot be written."""
    with file_errors(f"{what} cannot be written", output):
        write_whole(output, text.encode())


def print_json(value: Any) -> None:
    """Prints a result as JSON."""
    click.echo(json.dumps(value))
