"""A sweep: tries candidates in the running model, and confirms winners.

Candidates of many kernels share a trial, because each step is timed. A decision above schedules
changes the steps, so each of its alternatives has a trial of its own, and the whole run is timed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tcc.errors import TccError
from tcc.frozen import frozen
from tcc.runtime.trial_rounds import Round, TurnFailedError, timed_rounds
from tcc.runtime.trials import CRASHED, Runner, Trial, TrialFailedError
from tcc.tune.bisect import culprits
from tcc.tune.candidates import TunedDecision, TunedKernel
from tcc.tune.lock import Home
from tcc.tune.measurement import (
    FIRST,
    MODEL,
    REFUSED,
    SEARCH,
    SECOND,
    SKIPPED,
    TIMED,
    Measurement,
)
from tcc.tune.search import SiteSearch
from tcc.tune.verdicts import (
    GAIN,
    PEAK_SHARE,
    best_peak,
    counted,
    gain_of,
    is_slow,
    model_digest,
    model_winners,
    passes,
    wins,
)
from tcc.zipped import zip_equal

MOST_TRIALS = 6  # that are loaded at once
CompileTrial = Callable[[Mapping[str, str], Path], Trial]
# Maps sites to the texts of their candidates.
Choices = dict[str, str]


@frozen
class Effort:
    """How long a sweep measures.

    `seconds`: of the whole sweep. `turn`: of a trial in a round. `trials`: that take turns beside
    the analytic artifact. `search` and `confirm`: rounds of a trial that count, in the search and
    in each later phase. `skip`: the part of the time below which a kernel is not tried.
    `challengers`: candidates of a kernel that may be confirmed.
    """

    seconds: float
    turn: float = 0.06
    trials: int = MOST_TRIALS
    search: int = 8
    confirm: int = 40
    skip: float = 0.002
    challengers: int = 3


# The part of a sweep's time at which each phase ends.
_ENDS: Mapping[str, float] = {SEARCH: 0.55, FIRST: 0.72, SECOND: 0.88, MODEL: 1.0}
# The same with decisions above schedules: for kernels, then for the decisions.
_KERNEL_ENDS: Mapping[str, float] = {SEARCH: 0.4, FIRST: 0.52, SECOND: 0.64}
_DECISION_ENDS: Mapping[str, float] = {SEARCH: 0.8, FIRST: 0.92, SECOND: 0.92}
_LEAST_ROUNDS = 10  # a phase that confirms has at least this many rounds, even if its time is over
_LEAST_SECONDS = 1e-9  # clocks do not resolve less, and ratios need a time above zero
# The search moves on after this many times its rounds, also if few of them count.
_PATIENCE = 2
_SLOW_AFTER = 60.0  # seconds of measuring after which a slow machine is reported


@dataclass(slots=True)
class Sweep:
    """One sweep over the kernels of a model, and over its decisions above schedules.

    `home` is the section of the lock. `decisions` come in the order in which they are tried, after
    the kernels. `compile_trial` compiles a trial to a path in `folder`, and
    `runner` runs trials. `known` are measurements of earlier sweeps, which are not measured again,
    and `peak` is the highest multiply-adds per second that they know. `say` is called with a
    sentence for the user, and `progress` with the state of the sweep. `clock` returns seconds.
    """

    kernels: Sequence[TunedKernel]
    home: Home
    compile_trial: CompileTrial
    runner: Runner
    folder: Path
    effort: Effort
    known: Iterable[Measurement] = ()
    peak: float = 0.0
    say: Callable[[str], None] = print
    progress: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    order: Random = field(default_factory=lambda: Random(0))
    decisions: Sequence[TunedDecision] = ()
    _ops: dict[str, str] = field(default_factory=dict)
    _base: Choices = field(default_factory=dict)
    _ends: Mapping[str, float] = field(default_factory=dict)
    _all: list[Measurement] = field(default_factory=list)
    _known: dict[tuple[str, str, str], Measurement] = field(default_factory=dict)
    _kernels: dict[str, TunedKernel] = field(default_factory=dict)
    _start: float = 0.0
    _count: int = 0
    _is_slow_said: bool = False

    def measurements(self) -> Iterator[Measurement]:
        """Yields the measurement of each candidate as soon as it is complete.

        Raises TccError if the analytic artifact cannot be compiled, and TrialFailedError if it
        cannot be run.
        """
        self._kernels = {kernel.site: kernel for kernel in self.kernels}
        self._ops = {"": "the whole model", **{kernel.site: kernel.op for kernel in self.kernels}}
        self._ops.update((decision.site, decision.op) for decision in self.decisions)
        self._ends = _KERNEL_ENDS if self.decisions else _ENDS
        self._known = {(m.site, m.candidate, m.phase): m for m in self.known}
        self._all = [*self._known.values()]
        for measurement in self._phases():
            self._all.append(measurement)
            yield measurement

    def _phases(self) -> Iterator[Measurement]:
        analytic = self._compiled({})
        self.runner.check(analytic)
        self.runner.turn(analytic, 0.0)  # the first turn fills caches
        self._start = self.clock()  # what is measured counts, not the first compile
        searches: dict[str, SiteSearch] = {}
        seconds = analytic.site_seconds(self.runner.turn(analytic, self.effort.turn).steps)
        minimum = self.effort.skip * sum(seconds.values())
        for site, kernel in self._kernels.items():
            if seconds.get(site, 0.0) >= minimum:
                searches[site] = SiteSearch(kernel)
            elif (site, "", SEARCH) not in self._known:
                why = f"it takes less than {self.effort.skip:.1%} of the time"
                yield self._measurement(site, "", SEARCH, SKIPPED, why)
        yield from self._search(analytic, searches, seconds)
        yield from self._confirm(analytic, searches)
        if self.decisions:
            self._ends = _DECISION_ENDS
            yield from self._above(analytic)
        self._ends = _ENDS
        yield from self._whole_model(analytic)

    # ---- phases ---------------------------------------------------------------------------------

    def _search(
        self, analytic: Trial, searches: Mapping[str, SiteSearch], seconds: Mapping[str, float]
    ) -> Iterator[Measurement]:
        while not self._is_over(SEARCH):
            batch = [c for _ in range(self.effort.trials) if (c := self._next(searches))]
            if not batch:
                return
            saved = sum(
                seconds[site] * (1 - 1 / max(search.ratios[search.best], 1.0))
                for site, search in searches.items()
            )
            best = 1 / (1 - saved / max(sum(seconds.values()), _LEAST_SECONDS))
            self._report(f"{sum(map(len, batch))} candidates, best so far {best:.3f}")
            for measurement in self._tried(analytic, self._unknown(batch, SEARCH), SEARCH):
                self._learn(searches, measurement)
                yield measurement
            for choices in batch:
                for site, candidate in choices.items():
                    if earlier := self._known.get((site, candidate, SEARCH)):
                        self._learn(searches, earlier)

    def _learn(self, searches: Mapping[str, SiteSearch], measurement: Measurement) -> None:
        """Reports the ratio of a candidate to its search."""
        searches[measurement.site].report(measurement.candidate, self._ratio(measurement))

    def _ratio(self, measurement: Measurement) -> float:
        """Returns the median ratio partner / candidate: over the rounds that count, or over all
        rounds if none counts, and 0 for a failure."""
        (rounds,) = counted([measurement], self._highest())
        return gain_of(rounds if rounds.peaks else measurement)

    def _next(self, searches: Mapping[str, SiteSearch]) -> Choices:
        """Returns the next candidate of each kernel that has one, and notes it as tried."""
        choices: Choices = {}
        for site, search in searches.items():
            candidate = search.next()
            if candidate is not None:
                choices[site] = candidate
                search.report(candidate, 0.0)
        return choices

    def _unknown(self, batch: Sequence[Choices], phase: str) -> list[Choices]:
        """Returns a batch without the candidates that earlier sweeps measured."""
        unknown = [
            {s: c for s, c in choices.items() if (s, c, phase) not in self._known}
            for choices in batch
        ]
        return [choices for choices in unknown if choices]

    def _confirm(
        self, analytic: Trial, searches: Mapping[str, SiteSearch]
    ) -> Iterator[Measurement]:
        """Times the best candidates in two sets of rounds. The second set has only the candidates
        that pass the first set."""
        count = self.effort.challengers
        ranked = {site: s.challengers(GAIN, count) for site, s in searches.items()}
        for phase in (FIRST, SECOND):
            batch = _columns(ranked)
            self._report(f"confirming {sum(map(len, batch))} candidates, {phase} set")
            yield from self._tried(analytic, self._unknown(batch, phase), phase)
            confirmed = counted([m for m in self._all if m.phase == phase], self._highest())
            passed = {(m.site, m.candidate) for m in confirmed if passes(m)}
            ranked = {s: [c for c in texts if (s, c) in passed] for s, texts in ranked.items()}

    def _above(self, analytic: Trial) -> Iterator[Measurement]:
        """Times the alternatives of decisions above schedules, each in a trial of its own.

        The partner is the model with the choices that won before. Short rounds of several trials
        come first. An alternative that is faster there is confirmed alone, and belongs to later
        partners if it passes. Raises TrialFailedError if the analytic artifact fails.
        """
        minimum = self.effort.skip * analytic.price
        pairs = [
            (decision.site, text)
            for decision in self.decisions
            if decision.seconds >= minimum
            for text in decision.alternatives
        ]
        kernel_wins = wins(counted(self._all, self._highest()))
        self._base = {w.site: w.candidate for w in kernel_wins if w.site in self._kernels}
        partner, step = analytic, max(1, self.effort.trials - 1)  # the partner is loaded too
        try:
            for start in range(0, len(pairs), step):
                batch = [{site: text} for site, text in pairs[start : start + step]]
                self._report(f"{len(pairs) - start} alternatives of decisions above schedules")
                if unknown := self._unknown(batch, SEARCH):
                    if self._is_over(SEARCH):
                        break
                    partner = self._with_base(partner)
                    yield from self._tried(partner, unknown, SEARCH)
            for site, text in self._fastest(pairs):
                for phase in () if site in self._base else (FIRST, SECOND):
                    if unknown := self._unknown([{site: text}], phase):
                        if phase == FIRST and self._is_over(phase):
                            break
                        self._report(f"confirming {self._ops[site]}")
                        partner = self._with_base(partner)
                        yield from self._tried(partner, unknown, phase)
                    if not self._passed(site, text, phase):
                        break
                else:
                    self._base.setdefault(site, text)
        except (TccError, TrialFailedError) as error:
            if not self._base:
                raise
            self.say(f"choices that won alone fail together: {_failure_of(error)[1]}")
        self._base = {}
        self._removed([partner] if partner is not analytic else [])

    def _with_base(self, partner: Trial) -> Trial:
        """Returns a trial with the choices that won before: `partner` if it has them, else a new
        trial in its place."""
        if partner.choices == self._base:
            return partner
        trial = self._compiled({})
        self.runner.check(trial)
        self._removed([partner] if partner.choices else [])
        return trial

    def _fastest(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns the pairs (site, alternative) that were faster in the search by more than GAIN,
        the fastest first."""
        ratios = {(m.site, m.candidate): self._ratio(m) for m in self._all if m.phase == SEARCH}
        fast = [pair for pair in pairs if ratios.get(pair, 0.0) > GAIN]
        return sorted(fast, key=lambda pair: (-ratios[pair], pair))

    def _passed(self, site: str, candidate: str, phase: str) -> bool:
        key = site, candidate, phase
        timed = [m for m in self._all if (m.site, m.candidate, m.phase) == key]
        return any(map(passes, counted(timed, self._highest())))

    def _whole_model(self, analytic: Trial) -> Iterator[Measurement]:
        """Times the model with all winners, then with fewer of them while it is slower."""
        while True:
            winners, measured = model_winners(counted(self._all, self._highest()))
            digest = model_digest(winners)
            if measured and self._has_new_kernels(digest):
                return
            self._report(f"the whole model with {len(winners)} other choices")
            trial = self._compiled({win.site: win.candidate for win in winners})
            for site in trial.removed:
                self.say(f"other choices remove the site of a choice: {self._ops[site]}")
            self._ops.update(trial.ops)
            for site in trial.ops:
                if (site, digest, MODEL) not in self._known:
                    why = "a decision above schedules makes this kernel"
                    yield self._measurement(site, digest, MODEL, SKIPPED, why)
            if measured:
                self._removed([trial])
                return
            try:
                self.runner.check(trial)
                rounds = self._rounds([analytic, trial], MODEL)
            except (TrialFailedError, TurnFailedError) as error:
                # Each winner was right in other trials. Together they fail, so fewer are tried.
                yield self._measurement("", digest, MODEL, CRASHED, str(error))
                self._removed([trial])
                continue
            seconds, partner = ([r.turns[n].seconds for r in rounds] for n in (1, 0))
            why = _new_kernels(len(trial.ops))
            result = self._measurement("", digest, MODEL, TIMED, why)
            rows = zip_equal(seconds, partner, [r.peak for r in rounds])
            yield result.with_rounds([*rows])
            self._removed([trial])
            if not counted([self._all[-1]], self._highest())[0].peaks:
                return  # no round counted, so nothing more can be said

    def _has_new_kernels(self, digest: str) -> bool:
        """Returns True if the records name as many new kernels of the model with some choices as
        its own record counts; a process that was killed may have lost some."""
        rows = [m for m in self._all if m.phase == MODEL and m.candidate == digest]
        sites = {m.site for m in rows if m.site}
        return {m.why for m in rows if not m.site} <= {_new_kernels(len(sites))}

    # ---- trials ---------------------------------------------------------------------------------

    def _tried(
        self, analytic: Trial, batch: Sequence[Choices], phase: str
    ) -> Iterator[Measurement]:
        """Yields the measurements of all candidates of a batch, which are timed in equal rounds."""
        trials: list[Trial] = []
        pending = list(batch)
        while pending:
            for choices in pending:
                if trials and phase == SEARCH and self._is_over(phase):
                    break  # a large model compiles for long
                trial, failures = self._sound(choices, phase)
                yield from failures
                trials += [] if trial is None else [trial]
            pending = []
            try:
                rounds = self._rounds([analytic, *trials], phase) if trials else []
            except TurnFailedError as error:
                if error.index == 0:
                    raise error.error from error
                bad = trials.pop(error.index - 1)
                named = self._named(bad.choices, (error.error.outcome, error.error.why), phase)
                yield from named
                culprit_sites = {m.site for m in named}
                pending = [{s: c for s, c in bad.choices.items() if s not in culprit_sites}]
        for number, trial in enumerate(trials, 1):
            for site, candidate in trial.choices.items():
                rows = [self._row(r, analytic, trial, number, site) for r in rounds]
                yield self._measurement(site, candidate, phase, TIMED).with_rounds(rows)
        self._removed(trials)

    def _sound(
        self, choices: Mapping[str, str], phase: str
    ) -> tuple[Trial | None, list[Measurement]]:
        """Returns (trial, failures): a trial with the choices that compute right results."""
        failures: list[Measurement] = []
        remaining = dict(choices)
        while remaining:
            try:
                trial = self._compiled(remaining)
                for site in remaining.keys() & trial.refused.keys():
                    candidate, why = remaining.pop(site), trial.refused[site]
                    failures.append(self._measurement(site, candidate, phase, REFUSED, why))
                if not remaining:
                    self._removed([trial])
                    break
                self.runner.check(trial)
                return replace(trial, choices=dict(remaining), refused={}), failures
            except (TccError, TrialFailedError) as error:
                bad = self._named(remaining, _failure_of(error), phase)
                failures += bad
                for failure in bad:
                    remaining.pop(failure.site, None)
        return None, failures

    def _named(
        self, choices: Mapping[str, str], failure: tuple[str, str], phase: str
    ) -> list[Measurement]:
        """Returns a measurement of each choice that makes a trial fail."""
        self._report("a trial failed, looking for its kernel")
        named = [
            self._measurement(site, choices[site], phase, outcome, why)
            for site, outcome, why in culprits(choices, failure, self._fails)
        ]
        for m in named:
            self.say(f"a candidate of {m.op} is {m.outcome}: {m.why}")
        return named

    def _fails(self, choices: Mapping[str, str]) -> tuple[str, str] | None:
        try:
            trial = self._compiled(choices)
            self.runner.check(trial)
            self.runner.turn(trial, 0.0)
        except (TccError, TrialFailedError) as error:
            return _failure_of(error)
        self._removed([trial])
        return None

    def _compiled(self, choices: Mapping[str, str]) -> Trial:
        self._count += 1
        path = self.folder / f"trial{self._count}.so"
        return self.compile_trial({**self._base, **choices}, path)

    def _removed(self, trials: Sequence[Trial]) -> None:
        """Unloads trials and removes their files."""
        self.runner.drop(trials)
        for trial in trials:
            for suffix in (".so", ".h", ".so.weights"):
                trial.path.with_suffix(suffix).unlink(missing_ok=True)

    def _rounds(self, trials: Sequence[Trial], phase: str) -> list[Round]:
        is_search = phase == SEARCH
        goal = self.effort.search if is_search else self.effort.confirm
        minimum = goal // 2 if is_search else _LEAST_ROUNDS

        def enough(rounds: Sequence[Round]) -> bool:
            highest = max([self._highest(), *(r.peak for r in rounds)])
            count = sum(r.peak >= PEAK_SHARE * highest for r in rounds)
            is_late = self._is_over(phase) or (is_search and len(rounds) >= _PATIENCE * goal)
            return count >= goal or (len(rounds) >= minimum and is_late)

        rounds = timed_rounds(self.runner, trials, self.effort.turn, self.order, enough)
        is_late = self.clock() - self._start > _SLOW_AFTER
        if is_late and not self._is_slow_said and is_slow(self._all, self._highest()):
            self._is_slow_said = True
            self.say("the machine is slow: fewer than half of the rounds count so far")
        return rounds

    def _row(
        self, timed: Round, partner: Trial, trial: Trial, number: int, site: str
    ) -> tuple[float, float, float]:
        """Returns (seconds, partner, peak) of a site in a round; `number` is the trial's place.

        The seconds are those of the steps of a kernel, or of the whole run for a decision.
        """
        own, other = timed.turns[number], timed.turns[0]
        pair = own.seconds, other.seconds
        if site in self._kernels:
            pair = trial.site_seconds(own.steps)[site], partner.site_seconds(other.steps)[site]
        seconds, partner_seconds = (max(time, _LEAST_SECONDS) for time in pair)
        return seconds, partner_seconds, timed.peak

    # ---- texts and times ------------------------------------------------------------------------

    def _highest(self) -> float:
        return max(self.peak, best_peak(self._all))

    def _is_over(self, phase: str) -> bool:
        return self.clock() - self._start >= self._ends[phase] * self.effort.seconds

    def _report(self, text: str) -> None:
        remaining = max(0.0, self._start + self.effort.seconds - self.clock())
        self.progress(f"trial {self._count + 1}: {text}, {remaining:.0f} s left")

    def _measurement(
        self, site: str, candidate: str, phase: str, outcome: str, why: str = ""
    ) -> Measurement:
        op = self._ops[site]
        return Measurement(*self.home, site, op, candidate, phase, outcome, why=why)


def _new_kernels(count: int) -> str:
    return f"decisions above schedules make {count} of its kernels" if count else ""


def _failure_of(error: TccError | TrialFailedError) -> tuple[str, str]:
    """Returns (outcome, why) of a trial that cannot be compiled or run."""
    outcome = error.outcome if isinstance(error, TrialFailedError) else CRASHED
    return outcome, str(error.why or error)


def _columns(ranked: Mapping[str, Sequence[str]]) -> list[Choices]:
    """Returns the first candidate of each site, then the second of each, and so on."""
    depth = max(map(len, ranked.values()), default=0)
    return [
        {site: texts[n] for site, texts in ranked.items() if len(texts) > n} for n in range(depth)
    ]
