"""`tcc bench NEW.so --compare BASE.so`: facts and times of two artifacts of a model."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from filecmp import cmp
from pathlib import Path
from typing import Any

import click
from tcc.artifact import code_bytes, input_errors, load, read_manifest
from tcc.cli.arrays import inputs_of
from tcc.cli.choices import PATH, Command, switch
from tcc.cli.kernels.facts import kernel_facts, reading_manifest
from tcc.cli.opened import is_artifact
from tcc.cli.peers.peer import PEERS, Peer
from tcc.cli.progress import progress
from tcc.cli.show import print_json, say, say_all
from tcc.errors import UserError, printable
from tcc.frozen import frozen
from tcc.ir.op import NamedArrays
from tcc.runtime import gate_table
from tcc.runtime.compare import compare
from tcc.runtime.gate import ArtifactComparison, PairedRounds, measured, until_decided
from tcc.runtime.gate_facts import FACTS, ArtifactSide, Fact, artifact_facts
from tcc.runtime.interleaved import Turn, interleaved
from tcc.runtime.terminal import Table

# The name of --allow for results that differ, and the largest difference of results, relative to
# the largest value, that compiles of one model have in any precision.
_OUTPUTS, _SAME = "outputs", 0.1
# Seconds between two turns: workers of an artifact spin for 2 ms before they sleep.  Turns follow
# each other soon, because a busy machine changes its speed within a second.
_REST = 0.005


def gate_flags(command: Command) -> Command:
    """Adds the flags of a comparison of two artifacts."""
    compared = click.option(
        "--compare",
        "base",
        type=PATH,
        metavar="BASE.so",
        help="Compares MODEL, an artifact, with another artifact of the same model: facts, and "
        "times in turns.",
    )
    gate = click.option(
        "--gate",
        type=float,
        metavar="RATIO",
        help="With --compare: exit code 1 if a fact grows, or if two measurements say that MODEL "
        "takes more than RATIO times as long.",
    )
    allow = click.option(
        "--allow",
        multiple=True,
        type=click.Choice([*FACTS, _OUTPUTS]),
        help="With --gate: this fact may grow, or these results may differ.",
    )
    markdown = switch("--markdown", "With --compare: prints Markdown, for a job's summary.")
    return compared(gate(allow(markdown(command))))


def refuse(compared: str, flags: Mapping[str, Any]) -> None:
    """Raises UserError for a flag with a value: it does not go with `compared`, or needs
    --compare if `compared` is ""."""
    for flag, value in flags.items():
        if value and compared:
            raise UserError(f"{compared} does not go with this option", where=flag)
        if value:
            hint = "add --compare BASE.so"
            raise UserError("no artifact to compare with is given", where=flag, hint=hint)


@frozen
class GateJob:
    """The two artifacts, and how they are measured.

    `rounds` is the largest number of rounds, `seconds` the time of each artifact in one, and `cap`
    the longest time of an answer of a worker, in seconds.
    """

    new: Path
    base: Path
    threads: int
    rounds: int
    seconds: float
    cap: float
    allowed: frozenset[str]
    gate: float | None


@input_errors()
def run_gate(
    job: GateJob, inputs: tuple[str, ...], seed: int, *, as_json: bool, markdown: bool
) -> int:
    """Compares the artifacts, prints the result, and returns the exit code: 1 if the gate fails.

    `inputs` are the texts of `--input`.  Raises UserError for a gate below 1, and for files that
    are no artifacts of one model.
    """
    if job.gate is not None and not 1 <= job.gate < math.inf:
        hint = "give the ratio that is too slow, as in --gate 1.05"
        raise UserError("a gate is a ratio of at least 1", where=f"--gate {job.gate}", hint=hint)
    comparison = ArtifactComparison(tuple(_facts(job)), (), job.gate, job.allowed)
    if not cmp(job.new, job.base, shallow=False):
        arrays = inputs_of(job.new, load(job.new, job.threads).inputs, inputs, seed)
        with progress(f"comparing {job.new.name}") as stage:

            def more(count: int) -> PairedRounds:
                stage(f"{count} more rounds")
                return _measure(job, arrays, count)

            rounds = (*measured(lambda: until_decided(more, job.gate, job.rounds), job.gate),)
        comparison = ArtifactComparison(comparison.facts, rounds, job.gate, job.allowed)
    _show(job, comparison, as_json=as_json, markdown=markdown)
    return 1 if comparison.failures else 0


# ---- facts ---------------------------------------------------------------------------------------


def _facts(job: GateJob) -> tuple[Fact, ...]:
    """Returns the facts of both artifacts; raises UserError if they are of different models."""
    base, new = map(_side, (job.base, job.new))
    with reading_manifest(job.base, "fit the other manifest"):
        return tuple(artifact_facts(base, new))


def _side(path: Path) -> ArtifactSide:
    if not is_artifact(path):
        hint = "compile both models first"
        raise UserError("--compare compares two artifacts", where=path, hint=hint)
    manifest = read_manifest(path)
    variants = [kernel_facts(manifest, path, n) for n in range(len(manifest["variants"]))]
    launches = [
        [(facts.kernels[n].bytes, facts.kernels[n].seconds) for n in facts.steps if type(n) is int]
        for facts in variants
    ]
    return ArtifactSide(path, manifest, code_bytes(path), launches)


# ---- times ---------------------------------------------------------------------------------------


def _measure(job: GateJob, arrays: NamedArrays, count: int) -> PairedRounds:
    """Runs both artifacts in turns for `count` rounds, each in a new process.

    Raises UserError if their results differ.
    """
    with ExitStack() as stack:
        base, new = peers = [
            stack.enter_context(
                Peer(kind, path, arrays, job.threads, row=PEERS["tcc"], cap=job.cap)
            )
            for kind, path in (("base", job.base), ("new", job.new))
        ]
        if _OUTPUTS not in job.allowed:
            _check_results(new.outputs(), base.outputs(), job)
        times = interleaved(peers, count, job.seconds, take=_shortly_rested)
    return PairedRounds(times["base"].rounds, times["new"].rounds)


def _shortly_rested(kind: str, turn: Turn) -> Sequence[float]:
    """Waits until the workers of the other artifact sleep, then runs `turn`."""
    time.sleep(_REST)
    return turn()


def _check_results(new: NamedArrays, base: NamedArrays, job: GateJob) -> None:
    for name in base:
        difference = compare(name, new[name], base[name], _SAME)
        if difference.error > _SAME:
            raise UserError(
                "the artifacts compute different results",
                where=job.new,
                why=f"output {name} differs from that of {job.base} by {difference.error:.3g} of "
                f"its largest value {difference.why}".rstrip(),
                hint="compare artifacts of one model, or add --allow outputs",
            )


# ---- output --------------------------------------------------------------------------------------


def _show(job: GateJob, comparison: ArtifactComparison, *, as_json: bool, markdown: bool) -> None:
    title = f"{job.new.name} beside {job.base.name}, threads: {job.threads}"
    if as_json:
        print_json({"new": str(job.new), "base": str(job.base), "threads": job.threads}
                   | gate_table.record(comparison))  # fmt: skip
    elif markdown:
        click.echo(gate_table.markdown(printable(title), comparison))
    else:
        say(f"{title}: {gate_table.verdict(comparison)}")
        say_all((Table([*gate_table.rows(comparison)]), *comparison.failures))
