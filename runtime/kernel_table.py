"""The kernels of an artifact as a table: their work, and their time compared with the machine's
limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcc.runtime.kernel_facts import KernelFact, KernelFacts
from tcc.runtime.terminal import Table


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds that one step takes in a run, in which it runs `times` times.

    `step` is the number of a kernel or the name of a runtime function. `sizes` are the size
    arguments of the kernel (None: not known). `threads` counts the threads (None: all cores).
    """

    step: int | str
    times: int
    seconds: float
    sizes: tuple[int | None, ...] = ()
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of a kernel or of a runtime function in one run.

    `predicted` and `measured` are seconds of the run. The work, `flops` and `bytes`, is None for
    runtime functions, and if the sizes depend on the run's data. With symbolic sizes it is the work
    at the sizes of the run.

    `bound` names the lower bound of the time: "flops" at the machine's peak rate, or "bytes" at its
    memory bandwidth, whichever is larger. `share` is the lower bound divided by the measured time,
    or by the predicted time if none was measured. A bound above the measured time does not count.
    If neither counts, `bound` is "cache" and there is no share: the bytes came from a cache.

    `limit` and `limit_share` are facts of the kernel's longest launch. `limit` names the resource
    that takes longest according to the kernel's price. It is busy for the fraction `limit_share` of
    the launch's predicted time. Both are None if the artifact does not have them.
    """

    name: str
    source: str
    launches: int
    flops: int | None
    bytes: int | None
    predicted: float | None
    measured: float | None
    bound: str | None = None
    share: float | None = None
    limit: str | None = None
    limit_share: float | None = None


def kernel_rows(facts: KernelFacts, times: Sequence[StepTime] | None) -> list[KernelRow]:
    """Returns one row per kernel and function, the longest time first.

    Raises InputError if the work of a kernel cannot be computed at the sizes of the run.
    """
    rows = []
    for step in dict.fromkeys(facts.steps):
        work = [_step_work(facts, n, times) for n, other in enumerate(facts.steps) if other == step]
        measured = None if times is None else sum(seconds for *_, seconds in work)
        if isinstance(step, str):
            launches = sum(count for _, count, _ in work)
            rows.append(KernelRow(step, "", launches, None, None, None, measured))
        else:
            rows.append(_row(facts, facts.kernels[step], work, measured))
    return sorted(rows, key=lambda row: -_time(row))


def contractions(facts: KernelFacts, times: Sequence[StepTime] | None) -> tuple[int, float]:
    """Returns the flops of a run's contractions, and the seconds of the kernels that hold them.

    A multiply-add counts as two.  The seconds include all work that is fused into the kernels.
    They are measured, or predicted without `times`; kernels of unknown work are left out.
    """
    flops, seconds = 0, 0.0
    for number in range(len(facts.steps)):
        kernel, count, spent = _step_work(facts, number, times)
        if kernel is not None and kernel.contraction_flops:
            flops += kernel.contraction_flops * count
            seconds += spent
    return flops, seconds


_StepWork = tuple[KernelFact | None, int, float]


def _step_work(facts: KernelFacts, number: int, times: Sequence[StepTime] | None) -> _StepWork:
    """Returns a step's kernel, launches and seconds.

    The kernel is None if its work is not known. The seconds are measured, or predicted without
    `times`.
    """
    step = facts.steps[number]
    kernel = None if isinstance(step, str) else facts.kernels[step]
    if times is None:
        return kernel, 1, 0.0 if kernel is None else kernel.seconds
    time = times[number]
    return kernel and kernel.at(time.sizes, time.threads), time.times, time.seconds


def contraction_line(facts: KernelFacts, times: Sequence[StepTime] | None) -> str | None:
    """Returns the result of `contractions` as text, with its share of the machine's peak; None if a
    run has no contractions."""
    flops, seconds = contractions(facts, times)
    if not seconds:
        return None
    share = flops / seconds / facts.flops_per_second
    amount = f"{flops / 1e9:.3f} Gflop in {seconds * 1e3:.2f} ms"
    return f"contractions: {amount}, {share:.0%} of the limit of multiply-adds"


def symbolic_sizes_line(facts: KernelFacts, measured: bool) -> str | None:
    """Returns the table's note on kernels with symbolic sizes; None without any."""
    if not any(k.formulas for k in facts.kernels):
        return None
    if measured:
        return "symbolic sizes: the work is that of this run, and unknown where its data decide it"
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
    head = kernel.symbol, kernel.source, launches
    if any(fact is None and count for fact, count, _ in work):
        return KernelRow(*head, None, None, predicted, measured)
    flops = sum(fact.flops * count for fact, count, _ in work if fact)
    bytes_ = sum(fact.bytes * count for fact, count, _ in work if fact)
    bounds = {"flops": flops / facts.flops_per_second, "bytes": bytes_ / facts.bytes_per_second}
    time = predicted if measured is None else measured
    binding = [name for name in bounds if 0 < bounds[name] <= (measured or float("inf"))]
    nearest = max(binding, key=lambda name: bounds[name], default=None)
    share = bounds[nearest] / time if nearest and time else None
    bound = nearest or ("cache" if bytes_ else None)
    longest = max(work, key=lambda step: step[2])[0] or kernel
    limits = longest.limit, longest.limit_share
    return KernelRow(*head, flops, bytes_, predicted, measured, bound, share, *limits)


# The field of a row, the title of its column, and the factor that converts to the unit in the
# title.
_NUMBERS = (
    ("measured", "us", 1e6),
    ("predicted", "predicted", 1e6),
    ("flops", "Mflop", 1e-6),
    ("bytes", "MB", 1e-6),
)


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Returns the rows and their sum as a table; kernels appear by number, times in
    microseconds.

    The column of measured times is there only if a row has one.
    """
    heads = ("kernel", "launches", *(head for _, head, _ in _NUMBERS), "of peak", "limit", "source")
    table = [heads, *map(_cells, rows), *([_sum(rows)] if rows else ())]
    measured = any(row.measured is not None for row in rows)
    return Table([cells if measured else (*cells[:2], *cells[3:]) for cells in table])


def _cells(row: KernelRow) -> tuple[str, ...]:
    share = "cache" if row.bound == "cache" else _share(row.share, row.bound)
    numbers = (_number(getattr(row, name), factor) for name, _, factor in _NUMBERS)
    cells = row.name.removeprefix("tcc_kernel_"), str(row.launches), *numbers, share
    return *cells, _share(row.limit_share, row.limit), row.source


def _share(share: float | None, name: str | None) -> str:
    return name or "" if share is None else f"{share:.0%} {name}"


def _sum(rows: Sequence[KernelRow]) -> tuple[str, ...]:
    numbers = []
    for name, _, factor in _NUMBERS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        numbers.append(_number(sum(values) if values else None, factor))
    return "all", str(sum(row.launches for row in rows)), *numbers, "", "", ""


def _number(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:.2f}"
