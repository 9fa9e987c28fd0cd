"""Measures every model with tcc of two commits in the same rounds.

`scripts/bench --base COMMIT` does this.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from environment import ROOT
from paired import BASE, Base, Pair, checked_out, pairs_table
from peaks import Calm, CalmTurns, Peaks
from tcc.cli.peers.peer import Peer
from tcc.driver import compile_model
from tcc.errors import TccError
from tcc.options import Options, read_options
from tcc.runtime.interleaved import interleaved
from tcc.variants import resolve_targets

from models.build import DEFAULT_OUT, build
from models.inputs import make_inputs

SCRATCH = ROOT / "build" / "bench"
RESULTS = ROOT / "scripts" / "results"


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How tcc of both commits is timed.

    `seconds` is the time that an artifact gets in a round. `patience` is how many seconds a model
    waits at most for a calm machine.
    """

    base: str
    precision: str
    threads: int
    rounds: int
    seconds: float
    patience: float
    cap: float


def run_pairs(plan: PairPlan, models: Sequence[str], publish: bool) -> bool:
    """Measures, prints and stores the table; returns True if no model is slower or fails.

    The table goes to scripts/results if `publish`, else to build/bench.
    """
    SCRATCH.mkdir(parents=True, exist_ok=True)
    base = checked_out(plan.base, ROOT / "build" / "base")
    (target,) = resolve_targets(Options())
    heading = (
        f"{target.text}, {plan.threads} threads, {plan.precision}, {plan.rounds} rounds of "
        f"{plan.seconds:g} s, {date.today().isoformat()}"
    )
    print(f"{heading}; base: {base.commit}", flush=True)
    calm = Calm(plan.patience)
    pairs: list[Pair] = []
    failures: list[str] = []
    for number, model in enumerate(models, 1):
        try:
            pair = _measured(model, plan, base, calm)
        except (TccError, subprocess.CalledProcessError) as error:
            failures.append(f"{model}: {error}")
            print(failures[-1], flush=True)
            continue
        pairs.append(pair)
        verdict = "equal bytes" if not pair.base else f"bound {pair.bound:.3f}"
        print(f"[{number}/{len(models)}] {model}: {verdict}", flush=True)
    text = pairs_table(pairs, heading, base.commit) + "".join(f"{line}\n" for line in failures)
    print(f"\n{text}", end="")
    folder = RESULTS if publish and not failures else SCRATCH
    (folder / _file_name(plan.precision)).write_text(text)
    return not failures and not any(pair.slower for pair in pairs)


def _file_name(precision: str) -> str:
    return "paired.txt" if precision == "f32" else f"paired-{precision}.txt"


def _measured(model: str, plan: PairPlan, base: Base, calm: Calm) -> Pair:
    source = build(model, DEFAULT_OUT)
    # An artifact contains its file name, so equal artifacts need equal names.
    new, old = (SCRATCH / folder / f"{model}.{plan.precision}.so" for folder in ("new", BASE))
    for artifact in (new, old):
        artifact.parent.mkdir(exist_ok=True)
    options = {} if plan.precision == "f32" else {"precision": plan.precision}
    compile_model(source, read_options({**options, "name": model}), new)
    base.compile(source, old, plan.precision, model)
    if new.read_bytes() == old.read_bytes():
        return Pair(model)
    inputs = make_inputs(model, seed=0)
    with ExitStack() as stack:

        def peer(kind: str, artifact: Path) -> Peer:
            row = base.peer if kind == BASE else None
            return stack.enter_context(
                Peer(kind, artifact, inputs, plan.threads, row=row, cap=plan.cap)
            )

        peers = [peer("tcc", new), peer(BASE, old)]
        peaks = stack.enter_context(Peaks(SCRATCH, plan.threads))
        calm.begin(peaks)
        times = interleaved(peers, plan.rounds, plan.seconds, take=CalmTurns(calm))
    return Pair(model, times[BASE].rounds, times["tcc"].rounds)
