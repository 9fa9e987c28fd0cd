"""Counts the entries of a lock that apply in a compile, and finds kernels without an entry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tcc.errors import TccError, UserError
from tcc.frozen import frozen
from tcc.options import Options
from tcc.passes.choose.content import site
from tcc.passes.choose.ledger import Line, ListeningLedger, Sections
from tcc.passes.tile.plan import KernelChooser, KernelKey
from tcc.schedule.alternatives import Ledger, number
from tcc.tune.lock import Lock, LockEntry
from tcc.tune.lock_file import read_lock

_NAMED = 20  # kernels in a message


class NotTuned(TccError):
    """Kernels with a large part of the predicted time have no entry in the lock."""

    exit_code = 1


@frozen
class Applied:
    """The entries of a lock in one compile.

    `applied` entries belong to the model's decisions, and those with an alternative forced it.
    `unfit` entries had no effect, for the reasons in `warnings`. `elsewhere` entries are for other
    targets or other numbers of cores. Sites of `unrelated` entries do not occur in this compile:
    they belong to other models or, if `has_changes`, other entries may have removed them.
    """

    applied: int
    unfit: int
    elsewhere: int
    unrelated: int
    has_changes: bool
    warnings: tuple[str, ...]


def lock_of(options: Options) -> Lock | None:
    """Returns the lock of --tuned; None without it.

    Raises UserError for a damaged lock, and for --require-tuned without a lock.
    """
    if options.tuned is not None:
        return read_lock(options.tuned)
    if options.require_tuned is not None:
        hint = "give one, as in --tuned tcc.lock.json"
        raise UserError("there is no lock", where="--require-tuned", hint=hint)
    return None


def sections_of(lock: Lock | None, path: Path | None) -> Sections:
    """Returns the entries of a lock as lines for a ledger; `path` is the lock's file."""

    def line_in(section: Mapping[str, LockEntry], site: str) -> Line | None:
        entry = section.get(site)
        if entry is None:
            return None
        return Line(site, entry.alternative or "", f"--tuned {path}, line {entry.line}", True)

    sections = {} if lock is None else lock.sections
    return {home: partial(line_in, section) for home, section in sections.items()}


def applied_of(
    lock: Lock | None,
    ledger: Ledger,
    planners: Sequence[KernelChooser],
    minimum: float | None,
) -> Applied | None:
    """Returns the counts of a compile whose decisions `ledger` made; None without a lock.

    Raises NotTuned as `check_tuned` does, if `minimum` is not None.
    """
    if lock is None or not isinstance(ledger, ListeningLedger):
        return None
    if minimum is not None:
        check_tuned(planners, minimum)
    return count_applied(lock, ledger)


def count_applied(lock: Lock, ledger: ListeningLedger) -> Applied:
    """Returns the counts of a compile whose decisions `ledger` made."""
    here = sum(len(lock.sections.get(home, ())) for home in ledger.entered)
    unfit = {line: why for line, why in ledger.met.items() if why}
    return Applied(
        len(ledger.met) - len(unfit),
        len(unfit),
        lock.count - here,
        here - len(ledger.met),
        any(line.tuned for line in ledger.changes),
        tuple(f"{line.where} has no effect: {why}" for line, why in unfit.items()),
    )


def check_tuned(planners: Iterable[KernelChooser], minimum: float) -> None:
    """Raises NotTuned if a kernel has no entry and more than the fraction `minimum` of the time.

    The time is the predicted time of all launches that the planner of a variant planned. The ledger
    of a planner has the entries for the planner's target.
    """
    names = [text for planner in planners for text in _without(planner, minimum)]
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    if names:
        raise NotTuned(
            f"kernels without an entry that fits take more than {minimum:.2%} of the time each",
            where="--require-tuned",
            why="\n".join([*names[:_NAMED], *more]),
            hint="tcc tune MODEL --pin writes their entries, without measuring",
        )


def _without(planner: KernelChooser, minimum: float) -> Iterator[str]:
    """Yields a line for each kernel of a planner without an entry that fits."""
    ledger = planner.ledger
    assert isinstance(ledger, ListeningLedger)
    times: dict[KernelKey, float] = {}
    names: dict[KernelKey, str] = {}
    for bound, locs in planner.launches.items():
        key = planner.keys[bound]
        names.setdefault(key, locs[0])
        seconds = number(planner.price(bound.group, bound.schedule)) * len(locs)
        times[key] = times.get(key, 0.0) + seconds
    sum_of_times = sum(times.values())
    for key, seconds in times.items():
        here = site(planner.kind, *key)
        why = ledger.refusal(here)
        if seconds > minimum * sum_of_times and why != "":
            reason = "" if why is None else f", whose entry has no effect: {why}"
            share = f"{seconds / sum_of_times:.1%} of the time"
            yield f"{names[key]}: {share}, site {here.digest}{reason}"
