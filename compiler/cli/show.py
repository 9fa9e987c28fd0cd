"""Output of the commands: progress on a terminal, summaries, tables, sizes, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from tcc.errors import printable
from tcc.later import later

if TYPE_CHECKING:
    from rich import console, live, text
    from tcc.driver import CompileResult, VariantSummary
else:
    console, live, text = later("rich.console"), later("rich.live"), later("rich.text")


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the stage that begins, on stderr if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    printed_title = printable(title)
    # No thread refreshes the line, because processes with threads cannot fork.
    terminal = console.Console(stderr=True)
    with live.Live(console=terminal, auto_refresh=False, transient=True) as shown_line:
        yield lambda stage: shown_line.update(text.Text(f"{printed_title}: {stage}"), refresh=True)


def say(line: str, *, err: bool = False) -> None:
    """Prints one line with its control characters escaped."""
    click.echo(printable(line), err=err)


def say_fitted(lines: Iterable[str], *, err: bool = False, indent: int = 4) -> None:
    """Prints lines; a line wider than the terminal is wrapped, and its continuation indented."""
    for line in lines:
        for part in _parts(printable(line), len(line) - len(line.lstrip()) + indent) or [""]:
            click.echo(part, err=err)


def _parts(text: str, indent: int) -> list[str]:
    width = max(get_terminal_size().columns, 2 * indent)
    return wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)


def print_json(value: Any) -> None:
    """Prints a result as JSON."""
    click.echo(json.dumps(value))


def aligned(
    rows: Iterable[Sequence[str]], justify: Callable[[str, int], str] = str.rjust
) -> Iterator[str]:
    """Yields rows as lines of aligned columns.

    The first and the last column are aligned to the left, and the other columns by `justify`. Where
    a line is wider than the terminal, its last cell stands below it.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *middle, last in rows:
        cells = (first.ljust(widths[0]), *map(justify, middle, widths[1:]), last)
        line = "  ".join(cells).rstrip()
        if len(line) <= get_terminal_size().columns:
            yield line
            continue
        yield "  ".join(cells[:-1]).rstrip()
        yield from _parts(f"    {last}", 4) if last else ()


def bytes_text(size: int) -> str:
    """Returns a size as text: 1536 is `1.5 KiB`."""
    value, suffix = float(size), "B"
    for suffix in ("B", "KiB", "MiB", "GiB"):  # noqa: B007
        if value < 1024:
            break
        value /= 1024
    return f"{value:.0f} {suffix}" if suffix == "B" else f"{value:.1f} {suffix}"


def summary_line(compiled: CompileResult) -> str:
    """Returns the line that ends every compile.

    A fact that differs between variants appears once for each of them.
    """
    summary = compiled.summary
    specialised = f"{summary.specialisations} specialisation{'s' * (summary.specialisations != 1)}"
    needs = f"needs {summary.needs}"
    tuned = () if summary.tuned is None else (summary.tuned.text,)
    if len(summary.variants) == 1:
        kernels, converted, *sizes = _sizes(summary.variants[0], summary.precision)
        counted = f"{summary.ops} ops in {kernels}"
        precision = f"{summary.precision} with {converted}" if converted else summary.precision
        facts = (summary.target, counted, precision, specialised, *sizes, needs, *tuned)
        return f"{compiled.path}: {', '.join(facts)}"
    variant_texts = (
        f"{v.target}: {', '.join(filter(None, _sizes(v, summary.precision)))}"
        for v in summary.variants
    )
    general = ", ".join((f"{summary.ops} ops", summary.precision, specialised, needs, *tuned))
    return "; ".join((f"{compiled.path}: {general}", *variant_texts))


def _sizes(variant: VariantSummary, precision: str) -> tuple[str, ...]:
    arena = "by size" if variant.arena is None else bytes_text(variant.arena)
    return (
        f"{variant.kernels} kernels",
        _converted(variant.weight_types, precision),
        f"arena {arena}",
        f"weights {bytes_text(variant.weights)} ({variant.growth:.2f} times the model's)",
        *([f"needs {variant.needs}"] if variant.needs else ()),
    )


def _converted(types: Mapping[str, int], precision: str) -> str:
    """Returns text such as `12 of 14 matmul and convolution weights as int8`; empty for f32."""
    narrow = {name: count for name, count in types.items() if name != "f32"}
    population = f"of {sum(types.values())} matmul and convolution weights"
    parts = (f"{count} {population} as {name}" for name, count in narrow.items())
    if not types:
        return "" if precision in ("f32", "tf32") else "no matmul or convolution weights"
    return " and ".join(parts) or f"0 {population} in fewer bits"
