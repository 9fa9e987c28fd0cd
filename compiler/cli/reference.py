"""Runs of a model by a reference: ONNX Runtime without optimisations, or tcc's evaluator."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tcc.cli.peers.peer import CAP, PEERS, Peer
from tcc.driver import evaluate_model
from tcc.frontends.onnx.rounded import write_rounded
from tcc.frontends.rounding import Rounding
from tcc.ir.op import Array, NamedArrays
from tcc.record import record
from tcc.temporary import temporary_folder


@record
class Job:
    """A model on the draws of a range, rounded where `rounding` says how."""

    draws: range
    rounding: Rounding | None = None


def reference_name(own: bool) -> str:
    """What runs models; `own` where others do not take types that NumPy lacks."""
    installed = not own and find_spec("onnxruntime") is not None
    return "ONNX Runtime" if installed else "the reference evaluator"


def run_reference(
    model: Path, jobs: Sequence[Job], draws: Sequence[NamedArrays], threads: int, own: bool
) -> list[list[NamedArrays]]:
    """The outputs of each job on each of its draws."""
    with temporary_folder() as folder:
        paths = [folder / f"{n}.onnx" if job.rounding else model for n, job in enumerate(jobs)]
        for path, job in zip(paths, jobs, strict=True):
            if job.rounding:
                write_rounded(model, path, job.rounding)
        if reference_name(own) != "ONNX Runtime":
            return [
                [evaluate_model(path, draws[n]) for n in job.draws]
                for path, job in zip(paths, jobs, strict=True)
            ]
        ranges = (
            f"{job.draws.start}:{job.draws.stop}:{path}"
            for path, job in zip(paths, jobs, strict=True)
        )
        plain = PEERS["ort-plain"]
        row = replace(plain, arguments=(*plain.arguments, *ranges))
        feeds = {f"{n} {name}": a for n, draw in enumerate(draws) for name, a in draw.items()}
        cap = CAP * sum(len(job.draws) for job in jobs)
        with Peer("ort-plain", model, feeds, threads, row=row, cap=cap) as peer:
            found = peer.outputs()
    outputs: list[list[dict[str, Array]]] = [[{} for _ in draws] for _ in jobs]
    for text, array in found.items():
        number, draw, name = text.split(" ", 2)
        outputs[int(number)][int(draw)][name] = array
    return [[outputs[n][draw] for draw in job.draws] for n, job in enumerate(jobs)]
