"""The kernels of an artifact as a table: what they do, and how their time compares to the limit."""

from collections.abc import Iterator, Sequence

from tcc.cli.kernels.facts import KernelFact, KernelFacts
from tcc.cli.kernels.steps import StepTime
from tcc.cli.show import aligned
from tcc.record import record


@record
class KernelRow:
    """A kernel, or a function of the runtime (whose work is not known: None), in all its launches.

    `predicted` and `measured` are seconds of one run.  `share` is the limit's part of the measured
    time, else of the predicted one: the least that the operations at the machine's peak (`limit`
    "flops") or the bytes at its memory bandwidth ("bytes") can take.  A limit that the measured
    time is below is none; the one of bytes, if no other is left, is "cache", without a share: they
    came from there.  Where the artifact says what binds a kernel, `limit` is that.
    With symbolic sizes the work is that of the sizes of the run, None where only its data tell
    these.
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


def kernel_rows(facts: KernelFacts, times: Sequence[StepTime] | None) -> list[KernelRow]:
    """One row per kernel and function, the longest first."""
    rows = []
    for step in dict.fromkeys(facts.steps):
        work = [_step_work(facts, n, times) for n, other in enumerate(facts.steps) if other == step]
        measured = None if times is None else sum(seconds for *_, seconds in work)
        if isinstance(step, str):
            launches = sum(count for _, count, _ in work)
            rows.append(KernelRow(step, "", launches, None, None, None, measured, None, None))
        else:
            rows.append(_row(facts, facts.kernels[step], work, measured))
    return sorted(rows, key=lambda row: -_time(row))


def contractions(facts: KernelFacts, times: Sequence[StepTime] | None) -> tuple[int, float]:
    """Multiply-adds (two each) of a run's contractions, and seconds of the kernels that hold them,
    with all else that is fused into those: measured, where the work is known, or without `times`
    predicted."""
    flops, seconds = 0, 0.0
    for number in range(len(facts.steps)):
        kernel, count, spent = _step_work(facts, number, times)
        if kernel is not None and kernel.contraction_flops:
            flops += kernel.contraction_flops * count
            seconds += spent
    return flops, seconds


_StepWork = tuple[KernelFact | None, int, float]


def _step_work(facts: KernelFacts, number: int, times: Sequence[StepTime] | None) -> _StepWork:
    """A step's work (None: not known), launches and seconds: measured, or predicted."""
    step = facts.steps[number]
    kernel = None if isinstance(step, str) else facts.kernels[step]
    if times is None:
        return kernel, 1, 0.0 if kernel is None else kernel.seconds
    time = times[number]
    return kernel and kernel.at(time.sizes, time.threads), time.times, time.seconds


def contraction_line(facts: KernelFacts, times: Sequence[StepTime] | None) -> str | None:
    """`contractions` in words, against the limit of the artifact's machine; None without any."""
    flops, seconds = contractions(facts, times)
    if not seconds:
        return None
    share = flops / seconds / facts.flops_per_second
    amount = f"{flops / 1e9:.3f} Gflop in {seconds * 1e3:.2f} ms"
    return f"contractions: {amount}, {share:.0%} of the limit of multiply-adds"


def symbolic_sizes_line(facts: KernelFacts, measured: bool) -> str | None:
    """What the table says of kernels with symbolic sizes; None without any."""
    if not any(k.formulas for k in facts.kernels):
        return None
    if measured:
        return "symbolic sizes: work is that of this run; there is none where its data decide"
    return "symbolic sizes: counted as their typical values (tcc compile --typical)"


def _time(row: KernelRow) -> float:
    return (row.predicted or 0.0) if row.measured is None else row.measured


def _row(
    facts: KernelFacts, kernel: KernelFact, work: Sequence[_StepWork], measured: float | None
) -> KernelRow:
    launches = sum(count for _, count, _ in work)
    priced = not kernel.formulas or kernel.times
    is_priced = measured is None or (priced and all(fact for fact, count, _ in work if count))
    predicted = sum(fact.seconds * count for fact, count, _ in work if fact) if is_priced else None
    front = kernel.symbol, kernel.source, launches
    if any(fact is None and count for fact, count, _ in work):
        return KernelRow(*front, None, None, predicted, measured, None, None)
    flops = sum(fact.flops * count for fact, count, _ in work if fact)
    bytes_ = sum(fact.bytes * count for fact, count, _ in work if fact)
    bounds = {"flops": flops / facts.flops_per_second, "bytes": bytes_ / facts.bytes_per_second}
    time = predicted if measured is None else measured
    binding = [name for name in bounds if 0 < bounds[name] <= (measured or float("inf"))]
    nearest = max(binding, key=lambda name: bounds[name], default=None)
    share = bounds[nearest] / time if nearest and time else None
    limit = "cache" if bytes_ else None
    if nearest is not None:
        limit = kernel.limit or nearest
    return KernelRow(*front, flops, bytes_, predicted, measured, limit, share)


# Of a row, as a head, and the factor to the head's unit.
_NUMBERS = (
    ("measured", "measured us", 1e6),
    ("predicted", "predicted us", 1e6),
    ("flops", "Mflop", 1e-6),
    ("bytes", "MB", 1e-6),
)


def table_lines(rows: Sequence[KernelRow]) -> Iterator[str]:
    """The rows and their sum as aligned text, kernels by their numbers; nothing of what was not
    measured."""
    heads = ("kernel", "launches", *(head for _, head, _ in _NUMBERS), "of limit", "source")
    table = (heads, *map(_cells, rows), *([_sum(rows)] if rows else ()))
    measured = any(row.measured is not None for row in rows)
    return aligned(cells if measured else (*cells[:2], *cells[3:]) for cells in table)


def _cells(row: KernelRow) -> tuple[str, ...]:
    share = "" if row.share is None else f"{row.share:.0%} {row.limit}"
    share = "data in cache" if row.limit == "cache" else share
    numbers = (_number(getattr(row, name), factor) for name, _, factor in _NUMBERS)
    return row.name.removeprefix("tcc_kernel_"), str(row.launches), *numbers, share, row.source


def _sum(rows: Sequence[KernelRow]) -> tuple[str, ...]:
    numbers = []
    for name, _, factor in _NUMBERS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        numbers.append(_number(sum(values) if values else None, factor))
    return "all", str(sum(row.launches for row in rows)), *numbers, "", ""


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:.2f}"
