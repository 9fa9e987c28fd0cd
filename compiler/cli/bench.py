"""`tcc bench`."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click
from tcc.cli.arrays import make_inputs
from tcc.cli.choices import PATH, input_flag, json_flag, seed_flag, threads_flag
from tcc.cli.opened import opened_artifact
from tcc.cli.peer import PEERS, Peer
from tcc.cli.rounds import interleaved
from tcc.driver import load
from tcc.errors import UserError


@click.command()
@click.argument("model", type=PATH)
@input_flag
@seed_flag
@threads_flag
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option(
    "--seconds",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Time of one peer in one round.",
)
@click.option("--peers", default="", metavar="NAMES", help="Others to time, as in --peers ort.")
@json_flag
def bench(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    rounds: int,
    seconds: float,
    peers: str,
    as_json: bool,
) -> None:
    """Times MODEL, an ONNX file or an artifact, alone or against peers (ONNX files only).

    Each peer runs in its own process with the same threads and the same inputs, in turns.

    \b
    Example:
      tcc bench model.onnx --peers ort --threads 2
    """
    kinds = _kinds(peers, model)
    count = threads or len(os.sched_getaffinity(0))
    with opened_artifact(model) as artifact, ExitStack() as stack:
        arrays = make_inputs(load(artifact).inputs, inputs, seed)
        files = {"tcc": artifact}
        running = [
            stack.enter_context(Peer(kind, files.get(kind, model), arrays, count)) for kind in kinds
        ]
        times = interleaved(running, rounds, seconds)
    if as_json:
        found = {kind: asdict(item) for kind, item in times.items()}
        click.echo(json.dumps({"model": str(model), "threads": count, "seconds": found}))
        return
    for kind, item in times.items():
        ratio = times[kind].median / times["tcc"].median
        click.echo(
            f"{kind:10} median {item.median * 1e3:9.3f} ms, least {item.least * 1e3:9.3f} ms, "
            f"{item.runs} runs, {ratio:.2f} of tcc's time"
        )


def _kinds(peers: str, model: Path) -> list[str]:
    others = [name for name in peers.split(",") if name]
    unknown = [name for name in others if name not in PEERS]
    if unknown:
        raise UserError(
            f"unknown peer {unknown[0]!r}",
            where="--peers",
            hint=f"there are: {', '.join(PEERS)}",
        )
    if others and model.suffix == ".so":
        raise UserError("peers need the ONNX file, not the artifact", where=str(model))
    return list(dict.fromkeys(["tcc", *others]))
