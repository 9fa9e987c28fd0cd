"""The kernels of an artifact as a table: what they do, and how their time compares to the limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tcc.cli.kernel_facts import Facts, KernelFact
from tcc.cli.steps import StepTime
from tcc.schedule.nest import TYPICAL


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel, or a function of the runtime (whose work is not known: None), in all its launches.

    `predicted` and `measured` are seconds of one run.  `share` is the limit's part of the measured
    time, else of the predicted one: the least that the operations at the machine's peak (`limit`
    "flops") or the bytes at its memory bandwidth ("bytes") can take.  A limit that the measured
    time is below, for the bytes came from a cache, is none.  Where the artifact says what binds a
    kernel, `limit` is that.
    What sizes that are open make of a kernel's work is not known: a measured time has no share.
    """

    name: str
    source: str
    launches: int
    flops: int | None
    bytes: int | None
    predicted: float | None
    measured: float | None
    limit: str | None
    share: float | None

    def record(self) -> dict[str, Any]:
        """The row as JSON would have it."""
        return asdict(self)


def kernel_rows(facts: Facts, times: Sequence[StepTime] | None) -> list[KernelRow]:
    """One row per kernel and function, the longest first."""
    rows = []
    for step in dict.fromkeys(facts.steps):
        own = [t for t in times or () if t.step == step]
        launches = facts.steps.count(step) if times is None else sum(t.times for t in own)
        measured = None if times is None else sum(t.seconds for t in own)
        if isinstance(step, str):
            rows.append(KernelRow(step, "", launches, None, None, None, measured, None, None))
        else:
            rows.append(_row(facts, facts.kernels[step], launches, measured))
    return sorted(rows, key=lambda row: -_time(row))


def contractions(facts: Facts, times: Sequence[StepTime] | None) -> tuple[int, float]:
    """Multiply-adds (two each) of a run's contractions, and seconds of the kernels that hold them,
    with all else that is fused into those: measured, but for kernels of open sizes, or without
    `times` predicted."""
    flops, seconds = 0, 0.0
    steps = [(step, 1, None) for step in facts.steps]
    for step, count, measured in steps if times is None else map(_measured, times):
        kernel = None if isinstance(step, str) else facts.kernels[step]
        if kernel is None or (kernel.open_sizes and measured is not None):
            continue
        if kernel.contraction_flops:
            flops += kernel.contraction_flops * count
            seconds += kernel.seconds if measured is None else measured
    return flops, seconds


def _measured(time: StepTime) -> tuple[int | str, int, float]:
    return time.step, time.times, time.seconds


def contraction_line(facts: Facts, times: Sequence[StepTime] | None) -> str | None:
    """`contractions` in words, against the limit of the artifact's machine; None without any."""
    flops, seconds = contractions(facts, times)
    if not seconds:
        return None
    share = flops / seconds / facts.flops_per_second
    amount = f"{flops / 1e9:.3f} Gflop in {seconds * 1e3:.2f} ms"
    return f"contractions: {amount}, {share:.0%} of the limit of multiply-adds"


def open_sizes_line(facts: Facts, measured: bool) -> str | None:
    """What the table says of kernels whose sizes are open; None without any."""
    if not any(k.open_sizes for k in facts.kernels):
        return None
    if measured:
        return "open sizes: the work of a kernel without numbers depends on the input"
    return f"open sizes: counted as {TYPICAL}, or as the most that they may be"


def _time(row: KernelRow) -> float:
    return (row.predicted or 0.0) if row.measured is None else row.measured


def _row(facts: Facts, kernel: KernelFact, launches: int, measured: float | None) -> KernelRow:
    flops, bytes_ = kernel.flops * launches, kernel.bytes * launches
    predicted = kernel.seconds * launches
    if kernel.open_sizes and measured is not None:
        return KernelRow(
            kernel.symbol, kernel.source, launches, None, None, None, measured, None, None
        )
    least = {"flops": flops / facts.flops_per_second, "bytes": bytes_ / facts.bytes_per_second}
    time = predicted if measured is None else measured
    # A time below a limit shows that it does not hold here: bytes came from a cache, say.
    held = [name for name in least if 0 < least[name] <= (measured or float("inf"))]
    nearest = max(held, key=lambda name: least[name], default=None)
    share = least[nearest] / time if nearest and time else None
    limit = None if nearest is None else kernel.limit or nearest
    return KernelRow(
        kernel.symbol, kernel.source, launches, flops, bytes_, predicted, measured, limit, share
    )


_HEADS = ("kernel", "launches", "measured us", "predicted us", "Mflop", "MB", "of limit", "source")


def table_lines(rows: Sequence[KernelRow]) -> Iterator[str]:
    """The rows and their sum as aligned text."""
    cells = [_HEADS, *map(_cells, rows)]
    if rows:
        cells.append(_sum(rows))
    widths = [max(len(row[n]) for row in cells) for n in range(len(_HEADS))]
    for row in cells:
        numbers = (text.rjust(width) for text, width in zip(row[1:-1], widths[1:-1], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *numbers, row[-1])).rstrip()


def _cells(row: KernelRow) -> tuple[str, ...]:
    share = "" if row.share is None else f"{row.share:.0%} {row.limit}"
    return (
        row.name,
        str(row.launches),
        _number(row.measured, 1e6),
        _number(row.predicted, 1e6),
        _number(row.flops, 1e-6),
        _number(row.bytes, 1e-6),
        share,
        row.source,
    )


def _sum(rows: Sequence[KernelRow]) -> tuple[str, ...]:
    def total(values: list[float | None], scale: float) -> str:
        known = [v for v in values if v is not None]
        return _number(sum(known), scale) if known else ""

    return (
        "all",
        str(sum(r.launches for r in rows)),
        total([r.measured for r in rows], 1e6),
        total([r.predicted for r in rows], 1e6),
        total([r.flops for r in rows], 1e-6),
        total([r.bytes for r in rows], 1e-6),
        "",
        "",
    )


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:.2f}"
