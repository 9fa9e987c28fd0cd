"""`tcc bench`."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import click
from tcc.artifact import read_manifest
from tcc.cli.arrays import inputs_of
from tcc.cli.choices import COUNT, PATH, Seconds, json_flag, rank_flags, run_flags
from tcc.cli.deadline import timeout_flag
from tcc.cli.gate import GateJob, gate_flags, refuse, run_gate
from tcc.cli.joined import joined
from tcc.cli.opened import is_artifact, opened_artifact
from tcc.cli.peers.peer import CAP, PEERS, Peer, check_format, peer_names
from tcc.cli.progress import progress
from tcc.cli.ranks import check_pin, run_ranks, words_of
from tcc.cli.show import print_json, say, say_all
from tcc.errors import ToolError, UserError
from tcc.runtime.bench_text import bench_lines, bench_record
from tcc.runtime.interleaved import Times, interleaved
from tcc.runtime.rank_times import rank_times

# Rounds, and the seconds of a turn: without --compare, and with it.  The bounds of a comparison
# need many rounds, and on a busy machine short ones.
_ROUNDS, _SECONDS = (7, 656), (0.3, 0.02)


@click.command()
@click.argument("model", type=PATH)
@run_flags
@click.option(
    "--rounds",
    type=COUNT,
    help=f"Rounds; default: {_ROUNDS[0]}. With --compare the most rounds; default: {_ROUNDS[1]}.",
)
@click.option(
    "--seconds",
    type=Seconds(),
    help=f"Time of one peer in one round; default: {_SECONDS[0]}, with --compare {_SECONDS[1]}.",
)
@click.option(
    "--peers", default="", metavar="NAMES", help=f"Others to time: {', '.join(list(PEERS)[1:])}."
)
@click.option(
    "--cap",
    default=CAP,
    show_default=True,
    type=Seconds(),
    help="Seconds to wait for any one answer of a peer.",
)
@click.option(
    "--artifact",
    type=PATH,
    help="Time this artifact of MODEL instead of compiling MODEL with the default choices.",
)
@rank_flags("Times this many ranks of an artifact that was compiled with --ranks, on this host.")
@gate_flags
@json_flag
@timeout_flag
def bench(
    model: Path,
    inputs: tuple[str, ...],
    seed: int,
    threads: int | None,
    rounds: int | None,
    seconds: float | None,
    peers: str,
    cap: float,
    artifact: Path | None,
    nproc: int | None,
    pin: bool,
    base: Path | None,
    gate: float | None,
    allow: tuple[str, ...],
    markdown: bool,
    as_json: bool,
) -> int:
    """Times MODEL, an ONNX file, a .pt2 archive or an artifact, alone or against peers.

    Each peer runs in its own process with the same threads and the same inputs, in turns. Peers
    read ONNX files, inductor reads .pt2 archives. If a peer cannot run the model, its row says so,
    and the exit code is 3.

    \b
    Example:
      tcc bench model.onnx --peers ort,openvino --threads 2 --timeout 600
      tcc bench model.so --nproc 2 --pin    (compiled with --ranks 1,2)
      tcc bench new.so --compare base.so --gate 1.05 --allow arena
    """
    check_pin(nproc, pin)
    kinds = _kinds(peers, model)
    count = threads or len(os.sched_getaffinity(0))
    if base is not None:
        refuse("--compare", {"--peers": peers, "--artifact": artifact, "--nproc": nproc})
        limits = rounds or _ROUNDS[1], seconds or _SECONDS[1], cap
        job = GateJob(model, base, count, *limits, frozenset(allow), gate)
        return run_gate(job, inputs, seed, as_json=as_json, markdown=markdown)
    refuse("", {"--gate": gate is not None, "--allow": allow, "--markdown": markdown})
    rounds, seconds = rounds or _ROUNDS[0], seconds or _SECONDS[0]
    if artifact is not None:
        read_manifest(artifact)
    with opened_artifact(artifact or model, inputs) as compiled, ExitStack() as stack:
        if nproc:
            flags = {"--seed": seed, "--rounds": rounds, "--seconds": seconds, "--threads": threads}
            words = ["bench", str(compiled), *words_of(inputs, flags), *["--json"] * as_json]
            click.echo(run_ranks(nproc, pin, words)[0], nl=False)
            return 0
        module, comm = stack.enter_context(joined(compiled, threads))
        arrays = inputs_of(compiled, module.inputs, inputs, seed)
        if comm is not None:
            own_times = rank_times(module, comm, arrays, rounds, seconds)
            name = f"{model.name} on {comm.size} ranks"
            share = threads or max(1, len(os.sched_getaffinity(0)) // comm.local_size)
            _show(name, share, rounds, {"tcc": own_times}, {}, as_json)
            return 0
        files = {"tcc": compiled}
        stage = stack.enter_context(progress("timing"))
        running, failures = [], dict[str, ToolError]()
        for kind in kinds:
            try:
                if kind not in files:
                    check_format(PEERS[kind], model)
                peer = Peer(kind, files.get(kind, model), arrays, count, cap=cap)
            except ToolError as error:
                if kind in files:
                    raise
                failures[kind] = error
            else:
                running.append(stack.enter_context(peer))
        times = interleaved(
            running, rounds, seconds, between=lambda n: stage(f"round {n + 1} of {rounds}")
        )
    _show(model.name, count, rounds, times, failures, as_json)
    return ToolError.exit_code if failures else 0


def _show(
    name: str,
    count: int,
    rounds: int,
    times: Mapping[str, Times],
    failures: Mapping[str, ToolError],
    as_json: bool,
) -> None:
    texts = {kind: str(error) for kind, error in failures.items()}
    if as_json:
        print_json({"model": name, "threads": count, **bench_record(times, texts)})
        return
    say(f"{name}, threads: {count}, rounds: {rounds}, times in milliseconds")
    say_all(bench_lines(times, texts, {kind: row.title for kind, row in PEERS.items()}))


def _kinds(peers: str, model: Path) -> list[str]:
    names = peer_names(peers)
    if names and is_artifact(model):
        raise UserError("peers need the model, not the artifact", where=model)
    return list(dict.fromkeys(["tcc", *names]))
