"""A simulated machine with kernels of known true times, to test sweeps without a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tcc.runtime.trials import Trial, TrialFailedError, Turn
from tcc.tune.candidates import KernelCandidate, TunedDecision, TunedKernel
from tcc.tune.measurement import CRASHED, Measurement
from tcc.tune.sweep import Effort, Sweep

HOME = ("cpu:made-up", 2)
ANALYTIC = "Kernel(a=4, b=4)"


def text(a: int, b: int) -> str:
    return f"Kernel(a={a}, b={b})"


def numbers(candidate: str) -> tuple[int, int]:
    a, b = candidate.removeprefix("Kernel(a=").removesuffix(")").split(", b=")
    return int(a), int(b)


class Lattice:
    """Candidates with two knobs from 0 to 8, whose price grows with their sum."""

    def near(self, candidate: str) -> Sequence[KernelCandidate]:
        a, b = numbers(candidate)
        places = [(n, b) for n in range(9) if n != a] + [(a, n) for n in range(9) if n != b]
        return [KernelCandidate(text(m, n), 1.0 + m + n) for m, n in places]


@dataclass
class World:
    """A machine: `seconds[site](a, b)` is the true time of a kernel.

    `bad` maps (site, candidate) to the outcome of a trial with it. `noise` is the relative size of
    random changes of a turn. `slow(second)` divides the speed at a second of the clock. `extra` is
    the time that a set of choices adds to a whole run, but to no kernel. `makes` has the kernels
    that only exist with a choice, and `removes` the sites that a choice removes.
    """

    seconds: Mapping[str, Callable[[int, int], float]]
    bad: Mapping[tuple[str, str], str] = field(default_factory=dict)
    noise: float = 0.0
    slow: Callable[[float], float] = lambda _: 1.0
    extra: Callable[[Mapping[str, str]], float] = lambda _: 0.0
    makes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    removes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    built: dict[Path, Mapping[str, str]] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(1))
    now: float = 0.0
    turns: int = 0
    compiled: int = 0
    expects: bool = False

    def clock(self) -> float:
        return self.now

    def compile_trial(self, choices: Mapping[str, str], path: Path) -> Trial:
        self.now += 0.5
        self.compiled += 1
        self.built[path] = dict(choices)
        refused = {
            site: "it does not fit"
            for site, candidate in choices.items()
            if self.bad.get((site, candidate)) == "refused"
        }
        if any(self.bad.get(choice) == "uncompiled" for choice in choices.items()):
            raise TrialFailedError(CRASHED, "the compiler failed")
        ops = {s: f"op {s}" for c in choices.items() if (s := self.makes.get(c))}
        removed = tuple(s for c in choices.items() if (s := self.removes.get(c)) in choices)
        return Trial(path, dict(choices), refused, tuple(self.seconds), 0.0, ops, removed)

    def check(self, trial: Trial) -> None:
        self.now += 0.1
        self._fail(trial, ("wrong", "crashed", "hung"))

    def turn(self, trial: Trial, seconds: float) -> Turn:
        self._fail(trial, ("crashed late",))
        self.now += seconds
        self.turns += 1
        speed = self.slow(self.now)
        steps = []
        choices = self.choices(trial)
        for site, time in self.seconds.items():
            change = 1 + self.noise * abs(self.random.gauss(0, 1))
            steps.append(time(*numbers(choices.get(site, ANALYTIC))) * change * speed)
        return Turn(sum(steps) + self.extra(choices), tuple(steps))

    def choices(self, trial: Trial) -> Mapping[str, str]:
        """Returns the choices that were forced in the trial's artifact."""
        return self.built.get(trial.path, trial.choices)

    def drop(self, trials: Sequence[Trial]) -> None:
        pass

    def peak(self) -> float:
        self.now += 0.02
        return 1e9 / self.slow(self.now) * (1 - 0.01 * self.random.random())

    def _fail(self, trial: Trial, outcomes: Sequence[str]) -> None:
        for choice in self.choices(trial).items():
            outcome = self.bad.get(choice, "")
            if outcome in outcomes:
                raise TrialFailedError(outcome.split()[0], f"{outcome} as planted")


def swept(
    world: World,
    seconds: float = 120.0,
    known: Sequence[Measurement] = (),
    kernels: Sequence[TunedKernel] = (),
    lines: list[str] | None = None,
    decisions: Sequence[TunedDecision] = (),
) -> list[Measurement]:
    """Returns the measurements of a sweep over all kernels of a world, and over `decisions`."""
    lattice = Lattice()
    own_kernels = [TunedKernel(site, f"op {site}", ANALYTIC, lattice) for site in world.seconds]
    sweep = Sweep(
        kernels or own_kernels,
        HOME,
        world.compile_trial,
        world,
        Path("/nowhere"),
        Effort(seconds),
        known,
        say=(lines if lines is not None else []).append,
        progress=(lines if lines is not None else []).append,
        clock=world.clock,
        decisions=decisions,
    )
    return list(sweep.measurements())
