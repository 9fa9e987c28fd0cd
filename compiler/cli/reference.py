"""Runs a model with a reference implementation.

The reference is ONNX Runtime without optimisations for an ONNX file and PyTorch for a .pt2 archive.
If it cannot run the model, the reference is tcc's own evaluator.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from tcc.cli.peers.peer import CAP, PEERS, Peer, PeerKind
from tcc.driver import evaluate_draws
from tcc.frontends.onnx.rounded import write_rounded
from tcc.frontends.onnx.schema import loses_sums
from tcc.frontends.rounding import Rounding
from tcc.frozen import frozen
from tcc.ir.op import Array, NamedArrays
from tcc.passes.graph.state import NarrowStates
from tcc.temporary import temporary_folder
from tcc.zipped import zip_equal

_TORCH = PeerKind("PyTorch", "tcc.cli.peers.torch", "torch", "torch")


@frozen
class ReferenceJob:
    """A request to run the model on several sets of inputs, the draws with indices `draws`.

    `rounding` says which operands of the model are rounded, and to which types. With None, no
    operand is rounded.
    """

    draws: range
    rounding: Rounding | None = None


@frozen
class Reference:
    """The implementation that a model is compared with: `peer`, or tcc's evaluator if it is None.

    `name` is its name for people. `why` says why the evaluator is used, and is "" for a peer.
    `rounds_weights_alone`: rounding applies to weights, but not to the operands that they are
    multiplied with. This is so if the evaluator runs an archive.
    """

    name: str
    peer: PeerKind | None
    why: str
    rounds_weights_alone: bool


def reference_of(model: Path, evaluator_only: bool) -> Reference:
    """Returns the reference for a model.

    `evaluator_only`: no peer can run the model's types or its random nodes.
    """
    is_archive = model.suffix == ".pt2"
    row = _TORCH if is_archive else PEERS["ort-plain"]
    title, why = row.title.partition(",")[0], ""
    if evaluator_only:
        why = f"{title} does not take its types or its random draws"
    elif find_spec(row.package) is None:
        why = f"{title} is not installed (pip install {row.install})"
    if not why:
        return Reference(title, row, "", False)
    return Reference("the reference evaluator", None, why, is_archive)


def run_reference(
    model: Path,
    names: Sequence[str],
    jobs: Sequence[ReferenceJob],
    draws: Sequence[NamedArrays],
    threads: int,
    evaluator_only: bool,
    states: NarrowStates | None = None,
) -> list[list[NamedArrays]]:
    """Returns the outputs of the model by name, for each job and for each of the job's draws.

    `draws` has the inputs of all draws, of which a job takes a range. `names` are the names of an
    archive's outputs, which PyTorch only numbers. `evaluator_only`: no peer can run the model, as
    with `states`, which the evaluator rounds.
    """
    row, is_archive = reference_of(model, evaluator_only).peer, model.suffix == ".pt2"
    with temporary_folder() as folder:
        paths = [folder / f"{n}.onnx" if job.rounding else model for n, job in enumerate(jobs)]
        for path, job in zip_equal(paths, jobs):
            if job.rounding and is_archive:
                path.write_text(json.dumps(asdict(job.rounding)))
            elif job.rounding:
                write_rounded(model, path, job.rounding)
        if row is None:
            return [
                evaluate_draws(
                    model if is_archive else path,
                    [draws[n] for n in job.draws],
                    job.rounding,
                    states,
                )
                for path, job in zip_equal(paths, jobs)
            ]
        ranges = (
            f"{job.draws.start}:{job.draws.stop}:{path}" for path, job in zip_equal(paths, jobs)
        )
        row = replace(row, arguments=(*row.arguments, *ranges))
        feeds = {f"{n} {name}": a for n, draw in enumerate(draws) for name, a in draw.items()}
        cap = CAP * sum(len(job.draws) for job in jobs)
        if not is_archive and loses_sums(model):
            threads = 1
        with Peer(row.title, model, feeds, threads, row=row, cap=cap) as peer:
            named_arrays = peer.outputs()
    outputs: list[list[dict[str, Array]]] = [[{} for _ in draws] for _ in jobs]
    for text, array in named_arrays.items():
        number, draw, name = text.split(" ", 2)
        if name.isdigit() and is_archive and int(name) < len(names):
            name = names[int(name)]
        outputs[int(number)][int(draw)][name] = array
    return [[outputs[n][draw] for draw in job.draws] for n, job in enumerate(jobs)]
