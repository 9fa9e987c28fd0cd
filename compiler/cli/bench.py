"""`tcc bench`."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click
from tcc.artifact import read_manifest
from tcc.cli.arrays import inputs_of
from tcc.cli.choices import COUNT, PATH, RANKS, Seconds, json_flag, run_flags, switch
from tcc.cli.deadline import timeout_flag
from tcc.cli.gate import GateJob, gate_flags, refuse, run_gate
from tcc.cli.joined import joined
from tcc.cli.opened import is_artifact, opened_artifact
from tcc.cli.peers.peer import CAP, PEERS, Peer, check_format, peer_names
from tcc.cli.progress import progress
from tcc.cli.ranks import check_pin, run_ranks, words_of
from tcc.cli.show import print_json, say, say_all
from tcc.errors import ToolError, UserError
from tcc.runtime.interleaved import Times, best_ratio, interleaved, paired_ratio
from tcc.runtime.rank_times import rank_times
from tcc.runtime.terminal import Table

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
@click.option(
    "--nproc",
    type=RANKS,
    help="Times this many ranks of an artifact that was compiled with --ranks, on this host.",
)
@switch("--pin", "With --nproc: each rank has CPUs of its own.")
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
    if as_json:
        measured = {
            kind: {**asdict(item), "best": item.best, "scattered": item.scattered}
            for kind, item in times.items()
        }
        texts = {kind: str(error) for kind, error in failures.items()}
        failed = {"failed": texts} if texts else {}
        facts = {"model": name, "threads": count, "seconds": measured}
        print_json({**facts, **failed, **_ratios(times)})
        return
    say(f"{name}, threads: {count}, rounds: {rounds}, times in milliseconds")
    reasons = "\n".join(map(str, failures.values())).splitlines()
    say_all((_table(times, failures), *_disturbances(times), *reasons))


def _table(times: Mapping[str, Times], failures: Iterable[str]) -> Table:
    """Returns a table with a row for each peer; the peers `failures` have no times.

    The last two columns are ratios of the peer's time to tcc's time. In the first of them, a ratio
    is of one round, and the median over rounds is shown. In the second, the peer's best round is
    divided by tcc's best round.
    """
    rows: list[tuple[str, ...]] = [
        ("runtime", "median", "best round", "shortest", "runs", "ratio", "of best")
    ]
    for kind, item in times.items():
        numbers = (f"{value * 1e3:.3f}" for value in (item.median, item.best, item.least))
        ratios = (call(times["tcc"].rounds, [item.rounds]) for call in (paired_ratio, best_ratio))
        texts = (f"{ratio:.2f}x" for ratio in ratios)
        rows.append((PEERS[kind].title, *numbers, str(item.runs), *texts))
    rows += [(PEERS[kind].title, "failed", *[""] * 5) for kind in failures]
    return Table(rows)


def _ratios(times: Mapping[str, Times]) -> Mapping[str, float]:
    """Returns two ratios of the fastest peer's time to tcc's time, by name.

    The first is `rounds.paired_ratio`, from times of the same round. The second is
    `rounds.best_ratio`, from the best round of each runtime. The mapping is empty without peers.
    """
    peers = [item.rounds for kind, item in times.items() if kind != "tcc"]
    if not peers:
        return {}
    tcc = times["tcc"].rounds
    return {"ratio": paired_ratio(tcc, peers), "best_ratio": best_ratio(tcc, peers)}


def _disturbances(times: Mapping[str, Times]) -> Iterator[str]:
    """Yields one line per peer whose rounds differ much from each other.

    The median of such rounds is less informative than the best round.
    """
    for kind, item in times.items():
        if item.scattered:
            best, median = (f"{value * 1e3:.3f} ms" for value in (item.best, item.median))
            yield (
                f"{PEERS[kind].title}: {item.scattered} of {len(item.rounds)} rounds took over a "
                f"ninth longer than the best (best {best}, median {median}); the machine was "
                "busy with other work, or not at its usual speed"
            )


def _kinds(peers: str, model: Path) -> list[str]:
    names = peer_names(peers)
    if names and is_artifact(model):
        raise UserError("peers need the model, not the artifact", where=model)
    return list(dict.fromkeys(["tcc", *names]))
