"""Decides from measurements alone: which candidates won, and which entries the lock gets.

Equal measurements give equal verdicts, in whatever order they come.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from tcc.errors import TccError
from tcc.frozen import frozen
from tcc.runtime.bounds import median_bound
from tcc.schedule.alternatives import digest_of
from tcc.tune.lock import CHANGED, KEPT, SKIPPED, SLOW_MACHINE, Home, LockEntry
from tcc.tune.measurement import FIRST, MODEL, SEARCH, SECOND, TIMED, Measurement
from tcc.tune.measurement import SKIPPED as NOT_TRIED

PEAK_SHARE = 0.9  # a round counts if the machine reaches this part of the best known peak
GAIN = 1.02  # a challenger wins if the lower bound of its ratio is above
CONFIDENCE = 0.95


class SlowMachine(TccError):
    """No choice changed, because too few rounds count."""

    exit_code = 1


@frozen
class Win:
    """A challenger that won: its gain (analytic / candidate), the gain's lower bound, and the
    seconds of a run that it saves."""

    site: str
    candidate: str
    gain: float
    bound: float
    saved: float


def best_peak(measurements: Iterable[Measurement]) -> float:
    """Returns the highest multiply-adds per second beside any round; 0 without rounds."""
    return max((peak for m in measurements for peak in m.peaks), default=0.0)


def counted(measurements: Sequence[Measurement], peak: float = 0.0) -> list[Measurement]:
    """Returns the measurements with the rounds that count.

    `peak` is a peak of the machine that other records know, in multiply-adds per second.
    """
    highest = max(peak, best_peak(measurements))
    return [m.counted(highest, PEAK_SHARE) for m in measurements]


def is_slow(measurements: Sequence[Measurement], peak: float = 0.0) -> bool:
    """Returns True if fewer than half of the last rounds count.

    The last rounds are those that confirm candidates or time the model; without them, those of the
    search. So a slow start of a sweep does not spoil its end. Rounds of several candidates that
    share their peaks are the same rounds.
    """
    search, last = (
        {m.peaks for m in measurements if m.peaks and (m.phase == SEARCH) is is_search}
        for is_search in (True, False)
    )
    rounds = last or search
    highest = max(peak, best_peak(measurements))
    peaks = [p for row in rounds for p in row]
    return sum(p >= PEAK_SHARE * highest for p in peaks) * 2 < len(peaks)


def gain_of(measurement: Measurement) -> float:
    """Returns the median ratio analytic / candidate; 0 without rounds."""
    return median(measurement.ratios or (0.0,))


def passes(measurement: Measurement) -> bool:
    """Returns True if the candidate is faster by more than GAIN, with CONFIDENCE."""
    return median_bound(measurement.ratios, CONFIDENCE) > GAIN


def wins(measurements: Iterable[Measurement]) -> list[Win]:
    """Returns the winner of each site that has one, the most seconds saved first.

    A candidate wins if it passes both sets of rounds that confirm. Among several, that with the
    highest bound wins. `measurements` have only rounds that count.
    """
    phases: dict[tuple[str, str], dict[str, Measurement]] = {}
    for m in measurements:
        if m.phase in (FIRST, SECOND) and m.outcome == TIMED:
            phases.setdefault((m.site, m.candidate), {})[m.phase] = m
    best: dict[str, Win] = {}
    for (site, candidate), sets in sorted(phases.items()):
        if sets.keys() != {FIRST, SECOND} or not all(map(passes, sets.values())):
            continue
        bound = min(median_bound(m.ratios, CONFIDENCE) for m in sets.values())
        gain = min(map(gain_of, sets.values()))
        saved = sum(median(m.partner) - median(m.seconds) for m in sets.values()) / 2
        win = Win(site, candidate, gain, bound, saved)
        if site not in best or bound > best[site].bound:
            best[site] = win
    return sorted(best.values(), key=lambda win: (-win.saved, win.site))


# ---- the whole model ----------------------------------------------------------------------------


def model_digest(winners: Iterable[Win]) -> str:
    """Returns a digest of a set of choices, as in `Measurement.candidate` of the phase `model`."""
    return digest_of("\n".join(sorted(f"{win.site} {win.candidate}" for win in winners)))


def model_winners(measurements: Sequence[Measurement]) -> tuple[list[Win], bool]:
    """Returns (winners, measured): the winners that make the whole model not slower.

    If the model with some winners is slower or fails, the half of them that saves the least time is
    left out, and so on. `measured` is False if nobody has timed the model with the winners yet;
    there is nothing to time without winners. `measurements` have only rounds that count.
    """
    models = {m.candidate: m for m in measurements if m.phase == MODEL and not m.site}
    winners = wins(measurements)
    while winners:
        measurement = models.get(model_digest(winners))
        if measurement is None or (measurement.outcome == TIMED and not measurement.ratios):
            return winners, False
        if gain_of(measurement) >= 1:  # the model neither fails nor is slower in the median
            break
        winners = winners[: len(winners) // 2]
    return winners, True


# ---- entries ------------------------------------------------------------------------------------


@frozen
class Verdicts:
    """The entries of a sweep, in the order of their sites, and what a user should know.

    `slow`: the machine was slow, so no choice changed. `model`: the ratio of the whole model,
    analytic / tuned, with its lower bound; None if it was not timed.
    """

    home: Home
    entries: tuple[LockEntry, ...]
    slow: bool
    model: tuple[float, float] | None = None


def decide(measurements: Sequence[Measurement], home: Home, peak: float = 0.0) -> Verdicts:
    """Returns the verdict about each site of `home` that has a measurement.

    `peak` is a peak of the machine that other records know, in multiply-adds per second.
    """
    own_section = [m for m in measurements if (m.target, m.cores) == home]
    slow = is_slow(own_section, peak)
    rounds = counted(own_section, peak)
    winners = [] if slow else model_winners(rounds)[0]
    by_site, digest = {win.site: win for win in winners}, model_digest(winners)
    # Nothing is known about a kernel whose every round was slow.
    slow_sites = {m.site for m in own_section if slow or m.peaks} - {
        m.site for m in rounds if not slow and m.peaks
    }
    entries: dict[str, LockEntry] = {}
    for m in sorted(own_section, key=lambda m: (m.site, m.outcome == NOT_TRIED)):
        # A kernel that only exists with other winners has no entry.
        if m.site and (m.phase != MODEL or m.candidate == digest):
            entries.setdefault(m.site, _entry(m, by_site, m.site in slow_sites))
    timed = {m.candidate: m.ratios for m in rounds if m.phase == MODEL and not m.site}
    ratios = timed.get(digest, ())
    model = (median(ratios), median_bound(ratios, CONFIDENCE)) if winners and ratios else None
    return Verdicts(home, tuple(entries[site] for site in sorted(entries)), slow, model)


def _entry(m: Measurement, by_site: Mapping[str, Win], is_slow_site: bool) -> LockEntry:
    win = by_site.get(m.site)
    if win is not None:
        gain = round(win.gain, 4), round(win.bound, 4)
        return LockEntry(m.site, m.op, CHANGED, win.candidate, gain)
    if m.outcome == NOT_TRIED:
        return LockEntry(m.site, m.op, SKIPPED)
    return LockEntry(m.site, m.op, SLOW_MACHINE if is_slow_site else KEPT)
