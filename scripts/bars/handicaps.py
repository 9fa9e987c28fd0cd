"""Plants bad choices in a compile, and measures how much of the lost time a sweep regains.

A handicap forces bad choices for the whole model, and the sweep starts from them as if the compiler
had made them. Candidates that share the handicap cost half of their true price for the sweep, as if
an error of prices had led to it. Afterwards three artifacts take turns: the compiler's own, the
handicapped one, and the handicapped one with the choices that won.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from environment import ROOT
from tcc.cli.arrays import inputs_of
from tcc.cli.sweeping import peak_program
from tcc.ir.tile.group import TileGroup
from tcc.options import TOLERANCES, read_options
from tcc.passes.tile.cpu.plan import ForcedStructure
from tcc.runtime import load
from tcc.runtime.trial_rounds import timed_rounds
from tcc.runtime.trial_runner import TrialRunner
from tcc.schedule.alternatives import IMPOSSIBLE, Decision, number
from tcc.schedule.cpu.candidates import measured_knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.kernel_choice import read_kernel
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import anchor, contraction_factors
from tcc.trials import TrialCompiler
from tcc.tune.candidates import KernelCandidate, TunedDecision, TunedKernel
from tcc.tune.decisions import decisions_above
from tcc.tune.kernel_space import KernelSpace
from tcc.tune.sweep import Effort, Sweep
from tcc.tune.verdicts import PEAK_SHARE, decide

from bars.figures import Figure, at_least, say

LOSS, REGAINED = 1.15, 0.9
_MISLED = 0.5  # the part of its true price that a handicapped candidate costs in the sweep
_ROUNDS, _TURN = 30, 0.06


@dataclass(frozen=True, slots=True)
class Handicap:
    """Bad choices for a model of build/models.

    `kernels` returns the bad texts of a kernel, the most wanted first, for handicaps of schedules.
    `is_bad` says if a text has the handicap. `decisions` is the kind of the decisions that are
    forced to their dearest alternative, for handicaps above schedules.  At most `count` sites are
    changed, those with the longest predicted time.
    """

    name: str
    model: str
    kernels: Callable[[TunedKernel], Iterable[str]] | None = None
    decisions: str = ""
    count: int = 1000


# ---- bad schedules ------------------------------------------------------------------------------


def _space(kernel: TunedKernel) -> KernelSpace:
    assert isinstance(kernel.space, KernelSpace)
    return kernel.space


def _with_knobs(change: Mapping[str, int], kernel: TunedKernel) -> Iterator[str]:
    """Yields the text of a contraction under its knobs with `change`."""
    structure, knobs, group, _ = _space(kernel)._read(kernel.analytic)
    if contraction_factors(anchor(group)) is not None:
        yield structure.text(replace(knobs, **change))


def _one_row(kernel: TunedKernel) -> Iterator[str]:
    """Yields the text of a contraction whose tiles and register blocks have a single row."""
    structure, knobs, group, schedule = _space(kernel)._read(kernel.analytic)
    if contraction_factors(anchor(group)) is None:
        return
    vectors = {nest.vector for nest in schedule.nests}
    sizes = tuple((n, s) for n, s in schedule.tile_sizes if n in vectors)
    nests = tuple(_row_block(group, nest) for nest in schedule.nests)
    yield structure.text(knobs, replace(schedule, tile_sizes=sizes, nests=nests))


def _row_block(group: TileGroup, nest: Nest) -> Nest:
    rows = {v.name for n in nest.stages for v in group.stages[n].iters} - {nest.vector}
    return replace(nest, blocks=tuple((n, s) for n, s in nest.blocks if n not in rows))


def _other_vector(kernel: TunedKernel) -> Iterator[str]:
    """Yields the texts of a kernel with other vector loops, the dearest first."""
    space = _space(kernel)
    structure, _, group, schedule = space._read(kernel.analytic)
    loops = [k for k in measured_knobs_of(group) if k.name == "vector"]
    texts = {structure.text(k): structure.with_knobs(k) for knob in loops
             for k in knob.variants(Knobs())}  # fmt: skip
    bad = {text: space._price(*scheduled) for text, scheduled in texts.items()
           if _vectors(scheduled[1]) != _vectors(schedule)}  # fmt: skip
    yield from sorted(bad, key=lambda text: -bad[text])


def _vectors(schedule: Schedule) -> list[str | None]:
    return [nest.vector for nest in schedule.nests]


HANDICAPS = (
    Handicap("panels of one vector", "gpt2_prefill", partial(_with_knobs, {"panel": 1})),
    Handicap("K-blocks of 32", "gpt2_prefill", partial(_with_knobs, {"k_block": 32})),
    Handicap("tiles of one row", "mobilenet_v2", _one_row),
    Handicap("vector loops of three kernels", "mobilenet_v2", _other_vector, count=3),
    Handicap("worst form of a convolution", "unet", decisions="derive", count=1),
    Handicap("transposed storage order", "bert_base", decisions="order", count=1),
)


class MisledSpace:
    """The candidates of a kernel, of which those that share its handicap seem cheap."""

    def __init__(self, space: KernelSpace, bad: str) -> None:
        self._space, self._mark = space, _mark(bad)

    def near(self, text: str) -> Sequence[KernelCandidate]:
        return [
            replace(c, price=c.price * (_MISLED if _mark(c.text) == self._mark else 1.0))
            for c in self._space.near(text)
        ]


def _mark(text: str) -> str:
    """Returns the part of a kernel's text that holds its nests: candidates with equal nests share
    panels, K-blocks, rows and vector loops."""
    return text.partition("nests=")[2]


# ---- a sweep ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Spoiled:
    """A model and its bad choices, by site."""

    compiler: TrialCompiler
    kernels: Sequence[TunedKernel]
    decisions: Sequence[TunedDecision]
    bad: dict[str, str]

    def compile_trial(self, choices: Mapping[str, str], output: Path) -> Any:
        trial = self.compiler.compile_trial({**self.bad, **choices}, output)
        return replace(trial, choices=dict(choices))


def spoiled(handicap: Handicap, folder: Path) -> Spoiled:
    """Returns the model of a handicap with its bad choices."""
    path = ROOT / "build" / "models" / f"{handicap.model}.onnx"
    compiler = TrialCompiler(path, read_options({}))
    if handicap.kernels is not None:
        return _spoiled_kernels(handicap, compiler)
    worst = _worst(handicap, compiler._analytic.ledger.decisions())
    lines = folder / "bad.jsonl"
    lines.write_text("".join(json.dumps({"site": s, "alternative": t}) + "\n" for s, t in worst))
    compiler = TrialCompiler(path, read_options({"choices": str(lines)}))
    decisions = decisions_above(compiler._analytic.ledger, ())
    return Spoiled(compiler, compiler.kernels, decisions, {})


def _worst(handicap: Handicap, decisions: Iterable[Decision[Any]]) -> Iterator[tuple[str, str]]:
    """Yields the site and the dearest possible alternative of decisions, the largest loss first."""
    rows = []
    for decision in decisions:
        if decision.site.kind != handicap.decisions:
            continue
        possible = [a for a in decision.alternatives if a.price != IMPOSSIBLE]
        dearest = max(possible, key=lambda a: number(a.price))
        rows.append((number(dearest.price) - number(decision.choice.price), decision, dearest))
    for _, decision, dearest in sorted(rows, key=lambda r: -r[0])[: handicap.count]:
        yield decision.site.digest, dearest.text


def _spoiled_kernels(handicap: Handicap, compiler: TrialCompiler) -> Spoiled:
    assert handicap.kernels is not None
    by_time = sorted(compiler.kernels, key=lambda k: -_space(k).price_of(k.analytic))
    bad: dict[str, str] = {}
    for kernel in by_time:
        fitting = (t for t in handicap.kernels(kernel) if t != kernel.analytic and _fits(kernel, t))
        text = next(fitting, None)
        if text is not None and len(bad) < handicap.count:
            bad[kernel.site] = text
    kernels = [
        k if k.site not in bad
        else TunedKernel(k.site, k.op, bad[k.site], MisledSpace(_space(k), bad[k.site]))
        for k in compiler.kernels
    ]  # fmt: skip
    return Spoiled(compiler, kernels, compiler.decisions, bad)


def _fits(kernel: TunedKernel, text: str) -> bool:
    """Returns True if the kernel can have the choice `text`."""
    space = _space(kernel)
    try:
        choice = read_kernel(text, space._planner.core)
        forms = {f.limits.form: f for f in space._planner.legal_forms_of(space._key)}
        ForcedStructure(space._key, forms[choice.form], choice)
    except ValueError as error:
        say(f"  {kernel.op}: {error}")
        return False
    return True


def handicap_figures(handicap: Handicap, seconds: float, folder: Path) -> Iterator[Figure]:
    """Sweeps for `seconds` from the bad choices, and yields the loss and the regained part."""
    model = spoiled(handicap, folder)
    path = ROOT / "build" / "models" / f"{handicap.model}.onnx"
    say(f"  {len(model.bad) or 'forced'} bad choices of {len(model.kernels)} kernels")

    def inputs(artifact: Path) -> Any:
        return inputs_of(artifact, load(artifact).inputs, (), 0)

    with ExitStack() as stack:
        peaks = stack.enter_context(peak_program(folder, 0))
        runner = stack.enter_context(TrialRunner(folder, inputs, 0, TOLERANCES["f32"], 6, peaks))
        sweep = Sweep(model.kernels, model.compiler.home, model.compile_trial, runner, folder,
                      Effort(seconds), say=say, progress=lambda line: None,
                      decisions=model.decisions)  # fmt: skip
        verdicts = decide([*sweep.measurements()], model.compiler.home)
        won = {e.site: e.alternative for e in verdicts.entries if e.alternative is not None}
        plain = TrialCompiler(path, read_options({}))
        trials = [
            plain.compile_trial({}, folder / "good.so"),
            model.compile_trial({}, folder / "bad.so"),
            model.compile_trial(won, folder / "tuned.so"),
        ]
        rounds = timed_rounds(runner, trials, _TURN, Random(0), lambda r: len(r) >= _ROUNDS)
    highest = max(r.peak for r in rounds)
    counted = [r for r in rounds if r.peak >= PEAK_SHARE * highest]
    good, tuned = (median(r.turns[n].seconds / r.turns[1].seconds for r in counted) for n in (0, 2))
    note = f"{len(won)} choices, {len(counted)} of {len(rounds)} rounds"
    yield at_least(f"{handicap.name} ({handicap.model}): loss", 1 / good, LOSS)
    regained = (1 - tuned) / (1 - good)
    yield at_least("  regained by the sweep", regained, REGAINED, note=note)
