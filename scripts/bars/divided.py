"""Divides models among ranks, and compares results, times, weights and compiles with one rank."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tcc.artifact import read_manifest
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars import ten_heads
from bars.figures import Figure, say
from models.build import DEFAULT_OUT, build

MODELS = "bert_base gpt2_prefill gpt2_decode llama_decode llama_prefill resnet50 mixture".split()
# The models that are compared with one rank: the model of each case, and options of its compiles.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in MODELS},
    "llama_prefill in int4": ("llama_prefill", ("--weights=int4",)),
    "ten heads": ("ten_heads", ()),
}
RANKS = (2, 3, 4)
MOST_ERROR = 1e-5  # relative to the largest result of one rank
ROUNDS, SECONDS = 7, 1.0
# The most time of two ranks of one core each, relative to one core and to two threads.
TIME_BARS = {"bert_base": (0.54, 1.04), "gpt2_decode": (0.92, 1.08)}
PREDICTED = "bert_base", "gpt2_prefill"
COMPILES = 3
# Two hosts with two ranks each, and 10 Gbit/s between them.
HOSTS = [{"name": name, "ranks": 2, "memory_bytes": 1 << 34, "flops": 1e11} for name in "ab"]
LINKS = [
    {"between": [*between], "kind": "any", "bytes": 0, "latency_s": latency, "bytes_per_s": rate}
    for between, latency, rate in (("aa", 2e-6, 1.5e10), ("bb", 2e-6, 1.5e10), ("ab", 2e-5, 1.25e9))
]


def tcc(arguments: Sequence[str], library: Path, cpus: set[int] | None = None) -> str:
    """Returns what a command prints, on the CPUs `cpus`; raises CalledProcessError."""
    before = os.sched_getaffinity(0)
    variables = {**os.environ, "TCC_COMM_LIBRARY": str(library)}
    try:
        os.sched_setaffinity(0, cpus or before)
        result = subprocess.run(
            (sys.executable, "-P", "-m", "tcc", *arguments),
            env=variables, check=True, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.sched_setaffinity(0, before)
    return result.stdout


def model_file(name: str, folder: Path) -> Path:
    """Returns the file of a model; a model that is not one of `models` is written to `folder`."""
    if name == "ten_heads":
        path = folder / f"{name}.onnx"
        return path if path.exists() else ten_heads.save(path)
    return build(name, DEFAULT_OUT)


def compiled(name: str, ranks: str, folder: Path, *options: str) -> Path:
    """Returns the artifact of a case or a model for some numbers of ranks."""
    model, more = CASES.get(name, (name, ()))
    path = folder / f"{name}.so"
    command = ["compile", str(model_file(model, folder)), "-o", str(path), *more, *options]
    subprocess.run(
        (sys.executable, "-P", "-m", "tcc", *command, *([f"--ranks={ranks}"] if ranks else [])),
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return path


def results(folder: Path) -> Iterator[Figure]:
    """Yields the largest error of a run on several ranks, for each model and number of ranks.

    A figure is met only if all ranks have equal bits, in two runs too.
    """
    library = build_comm_library(find_toolchain(), folder)
    for name in CASES:
        say(f"{name}: compiling for 1, 2, 3 and 4 ranks")
        artifact = compiled(name, "1,2,3,4", folder)
        weights = {v.get("ranks", 1): v["weights"]["bytes"]
                   for v in read_manifest(artifact)["variants"]}  # fmt: skip
        outputs = folder / f"outputs of {name}"
        tcc(("run", str(artifact), "--seed=3", f"--output={outputs}/one"), library)
        for ranks in RANKS:
            say(f"{name}: {ranks} ranks")
            error, equal = _compared(artifact, ranks, outputs, library)
            share = weights[ranks] / weights[1]
            yield Figure(
                f"{name} on {ranks} ranks: error, equal bits",
                f"{error:.1e} {'equal' if equal else 'DIFFER'}, weights {share:.2f}",
                f"<= {MOST_ERROR:.0e}, equal",
                error <= MOST_ERROR and equal,
            )
        artifact.unlink()


def meshes(folder: Path) -> Iterator[Figure]:
    """Yields the largest error of a run on two hosts with two ranks each, for each model.

    All ranks run on this machine.  A figure is met only if all ranks have equal bits, in two runs
    too.
    """
    library = build_comm_library(find_toolchain(), folder)
    cluster = folder / "cluster.json"
    cluster.write_text(json.dumps({"version": 1, "hosts": HOSTS, "links": LINKS}))
    for name in CASES:
        say(f"{name}: 2x2 ranks")
        artifact = compiled(name, "1,4", folder, f"--cluster={cluster}")
        tcc(("run", str(artifact), "--seed=3", f"--output={folder}/one"), library)
        error, equal = _compared(artifact, 4, folder, library)
        yield Figure(
            f"{name} on 2x2 ranks: error, equal bits",
            f"{error:.1e} {'equal' if equal else 'DIFFER'}",
            f"<= {MOST_ERROR:.0e}, equal",
            error <= MOST_ERROR and equal,
        )
        artifact.unlink()


def _compared(artifact: Path, ranks: int, folder: Path, library: Path) -> tuple[float, bool]:
    """Returns the largest error of two runs on several ranks, and if all ranks have equal bits."""
    for number in range(2):
        words = ("run", str(artifact), "--seed=3", f"--nproc={ranks}")
        tcc((*words, f"--output={folder}/of{ranks}/run{number}.rank{{rank}}"), library)
    results = sorted((folder / f"of{ranks}").iterdir())
    return compared(folder / "one", results)


def compared(one: Path, folders: Sequence[Path]) -> tuple[float, bool]:
    """Returns the largest error of the arrays in `folders`, and if all of these have equal bits.

    The error is relative to the largest element of the array in `one`.
    """
    error, equal = 0.0, True
    for path in one.iterdir():
        expected = np.load(path)
        arrays = [np.load(other / path.name) for other in folders]
        equal &= all(array.tobytes() == arrays[0].tobytes() for array in arrays)
        largest = float(np.abs(expected).max()) or 1.0
        error = max(error, float(np.abs(arrays[0].astype(float) - expected).max()) / largest)
    return error, equal


def times(folder: Path) -> Iterator[Figure]:
    """Yields the time of two ranks of one core each over that of one core and of two threads.

    The three take turns.  Ratios are medians over rounds.  Needs an idle machine with two cores.
    """
    for name, bars in TIME_BARS.items():
        rounds = _rounds(name, folder)
        if not rounds:
            yield Figure("times of ranks", "one core", "two cores", None)
            return
        for place, (what, bar) in enumerate(zip(("one core", "two threads"), bars, strict=True), 1):
            ratio = statistics.median(times[0] / times[place] for times in rounds)
            spans = [f"{min(times[k] for times in rounds) * 1e3:.1f}" for k in (0, place)]
            yield Figure(
                f"{name}: 2 ranks over {what}",
                f"{ratio:.3f} ({' over '.join(spans)} ms)",
                f"<= {bar}",
                ratio <= bar,
            )


def _rounds(name: str, folder: Path) -> list[list[float]]:
    """Returns, for each round, the seconds of a run on two ranks, on one core and with two threads;
    no rounds on a machine with one core."""
    library, cpus = (
        build_comm_library(find_toolchain(), folder),
        sorted(os.sched_getaffinity(0))[:2],
    )
    if len(cpus) < 2:
        return []
    artifact = compiled(name, "1,2", folder)
    bench = ("bench", str(artifact), "--rounds=1", f"--seconds={SECONDS}", "--json")
    rounds = []
    for number in range(ROUNDS):
        say(f"{name}: round {number + 1} of {ROUNDS}")
        rounds.append([
            _median(tcc((*bench, "--nproc=2", "--pin"), library, set(cpus))),
            _median(tcc((*bench, "--threads=1"), library, {cpus[0]})),
            _median(tcc((*bench, "--threads=2"), library, set(cpus))),
        ])  # fmt: skip
    artifact.unlink()
    return rounds


def predictions(folder: Path) -> Iterator[Figure]:
    """Yields the predicted time of two ranks over that of one, relative to the measured ratio.

    Measured are two ranks of one core each and one core, as in `times`.
    """
    for name in PREDICTED:
        words = ("plan", str(build(name, DEFAULT_OUT)), "--ranks=2", "--json")
        facts = json.loads(tcc(words, folder))
        predicted = facts["seconds"] / facts["one_rank_seconds"]
        rounds = _rounds(name, folder)
        if not rounds:
            yield Figure("predictions", "one core", "two cores", None)
            return
        measured = statistics.median(two / one for two, one, _ in rounds)
        ratio = predicted / measured
        yield Figure(
            f"{name}: predicted over measured ratio of 2 ranks to 1",
            f"{ratio:.3f} ({predicted:.3f} over {measured:.3f})",
            "0.85 to 1.15",
            0.85 <= ratio <= 1.15,
        )


def _median(text: str) -> float:
    return float(json.loads(text)["seconds"]["tcc"]["median"])


def compiles(folder: Path) -> Iterator[Figure]:
    """Yields the time of a compile of bert_base for one and two ranks over that for one rank."""
    plain, divided = [], []
    for _ in range(COMPILES):
        for ranks, seconds in (("", plain), ("1,2", divided)):
            start = time.perf_counter()
            compiled("bert_base", ranks, folder)
            seconds.append(time.perf_counter() - start)
    ratio = statistics.median(b / a for a, b in zip(plain, divided, strict=True))
    what = "bert_base: compile for 1,2 ranks over plain"
    yield Figure(what, f"{ratio:.2f}", "<= 2.2", ratio <= 2.2)
