"""Limits for memory: arenas, plans, weights, pools, calls of the system's allocator, code size."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from environment import PYTHON, ROOT
from onnx import TensorProto, helper, numpy_helper, save
from tcc.backends.artifact.toolchain import RUNTIME_FLAGS, runtime_flags, runtime_sources
from tcc.driver import compile_model
from tcc.options import read_options

from bars.figures import (
    RUNTIME,
    TESTS,
    Figure,
    absent,
    at_least,
    at_most,
    compiled,
    output,
    say,
    unpack_runtime,
)
from models.manifest import manifest

sys.path.append(str(TESTS))

from pool_traces import TRACES
from trials import SYSTEM, WORKERS

MIB = 1 << 20
INSTANCES = ROOT / "../shared/data"
MORE = [ROOT / f"../shared/models/{name}.onnx" for name in ("yolox_nano", "magika_v3_3")]
WEIGHTS = 64 * MIB
TURNS = 9
PEERS = {"mimalloc": "libmimalloc.so.2", "jemalloc": "libjemalloc.so.2"}
# The growth of the runtime counts from here: the last commit without planner, pool and shared
# weights.
BASE_COMMIT = "6f283df"
# KiB. Profiles raised the bar from 80: each artifact writes stamps of its runs.
MOST_GROWTH = 88

# A process that has loaded the module prints how much its proportional share of memory grew.
HOLDER = """
import sys
import numpy as np
from tcc.runtime import load
def held():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
np.ones(64, np.float32) @ np.ones((64, 64), np.float32)
before = held()
module = load(sys.argv[1], threads=1)
module(np.ones((1, int(sys.argv[2])), np.float32))
print("ready", flush=True)
sys.stdin.readline()
print(held() - before, flush=True)
sys.stdin.readline()
"""


def arenas(folder: Path) -> Iterator[Figure]:
    """Yields figures of the arenas that scripts/arenas measures.

    Its models are all models of the manifest and the files MORE.
    """
    del folder
    more = [str(path) for path in MORE if path.is_file()]
    command = (sys.executable, str(ROOT / "scripts" / "arenas"), *manifest(), *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        rows = []
        for line in process.stdout or ():
            say(line.rstrip())
            rows.append(line.split())
    if process.returncode not in (0, 1):
        raise subprocess.CalledProcessError(process.returncode, command)
    fixed = {row[0]: int(row[1]) / int(row[2]) for row in rows[1:]}
    ratios = {row[0]: float(row[4]) for row in rows[1:] if row[4] != "-"}
    worst = max(ratios, key=ratios.__getitem__)
    yield at_most(
        "arenas of symbolic sizes over fixed, worst", ratios[worst], 1.05, note=f"({worst})"
    )
    good = sum(ratio <= 1.05 for ratio in ratios.values())
    yield at_least("models with symbolic sizes within 1.05", good, 10, note=f"of {len(ratios)}")
    worst = max(fixed, key=fixed.__getitem__)
    yield at_most("arenas of fixed sizes over the bound, worst", fixed[worst], 1, note=f"({worst})")


def growing(folder: Path) -> Iterator[Figure]:
    program = compiled(folder, "growing", ("arena.c", "alloc.c", "status.c"))
    times = {row: int(output(program, str(row))) for row in (48, 1 << 10, 64 << 10)}
    yield at_most("arenas made anew in 100 growing steps", max(times.values()), 5)


def minimalloc(folder: Path) -> Iterator[Figure]:
    """Yields for how many of MiniMalloc's 11 problems tcc's planner fits all buffers into 1 MiB.

    Then yields the sum of the planner's times and the longest time.
    """
    del folder
    files = sorted(INSTANCES.glob("minimalloc_*.1048576.csv"))
    if len(files) != 11:
        yield absent("MiniMalloc's instances at capacity", ">= 11", f"not in {INSTANCES}")
        return
    seconds, fit = [], 0
    for path in files:
        say(f"minimalloc: {path.name}")
        command = (str(PYTHON), "-m", "tcc.runtime.arena", str(path))
        start = time.monotonic()
        process = subprocess.run(
            (*command, "--capacity", "1048576", "--seconds", "30"), capture_output=True, check=False
        )
        seconds.append(time.monotonic() - start)
        fit += process.returncode == 0
    yield at_least("MiniMalloc's instances at capacity", fit, 11)
    yield at_most("their time together", sum(seconds), 60, "s")
    yield at_most("the longest of them", max(seconds), 15, "s")


def weights(folder: Path) -> Iterator[Figure]:
    """Yields the memory of two processes that load one artifact, divided by its weights' bytes."""
    width = int((WEIGHTS / 4) ** 0.5)
    array = np.random.default_rng(0).standard_normal((width, width), np.float32)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("x", "y")
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "weights", ports[:1], ports[1:],
        [numpy_helper.from_array(array, "w")],
    )  # fmt: skip
    path = folder / "weights.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    compile_model(path, read_options({}), folder / "weights.so")
    command = (str(PYTHON), "-c", HOLDER, str(folder / "weights.so"), str(width))
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    share_bytes = 0
    # Wait for both processes before either is measured: a page that both map counts half in each.
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        share_bytes += int(process.stdout.readline())
    for process in processes:
        process.communicate("\n")
    yield at_most("memory of 2 processes over their weights", share_bytes / array.nbytes, 1.1)


def mallocs(folder: Path) -> Iterator[Figure]:
    """Yields how many allocating calls the runs of a model make after warm-up.

    The sizes of the model's results depend on data.
    """
    number = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"])
    constants = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("zero", 0), ("one", 1))
    ]
    nodes = [
        helper.make_node("Range", ["zero", "n", "one"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "range", [number], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    save(model, folder / "range.onnx")
    compile_model(folder / "range.onnx", read_options({}), folder / "range.so")
    program = compiled(folder, "interposed", (), "-rdynamic", "-w")
    calls = int(output(program, folder / "range.so", "100000", "50"))
    yield at_most("allocating calls in 50 runs after warm-up", calls, 0)


def _has(library: str) -> bool:
    """Returns True if the dynamic linker can preload the library."""
    process = subprocess.run(
        ("true",), env=os.environ | {"LD_PRELOAD": library}, capture_output=True, check=False
    )
    return not process.stderr


def _least_times(program: Path, peers: Sequence[str]) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns (p50, p99.9) in ns for each (mix of sizes, allocator), each the least of all rounds.

    The least time counts, because other work on the machine can only add to a time. Each round
    measures every allocator.
    """
    least_times: dict[tuple[str, str], tuple[float, float]] = {}
    for turn in range(TURNS):
        say(f"pool: round {turn + 1} of {TURNS}")
        for name in ("own", "shared", "malloc", *peers):
            variables = {"LD_PRELOAD": PEERS[name]} if name in PEERS else {}
            kind = "malloc" if name in PEERS else name
            for row in output(program, "speed", kind, **variables).splitlines():
                mix, _, half, rare = row.split()
                previous = least_times.get((mix, name), (math.inf, math.inf))
                least_times[mix, name] = (
                    min(previous[0], float(half)),
                    min(previous[1], float(rare)),
                )
    return least_times


def pool(folder: Path) -> Iterator[Figure]:
    """Yields the worst peak of a pool on traces, divided by the peak of live bytes.

    Then yields the times to take and give back memory, and their ratios to the times of the C
    library's malloc and of other allocators.
    """
    sources = (*WORKERS, *SYSTEM, "budget.c", "arena.c", "sized.c")
    parts = (f"pool/{path.name}" for path in sorted((RUNTIME / "src" / "pool").glob("*.c")))
    program = compiled(folder, "pool_times", (*sources, *parts), "-w")
    peaks = {}
    for name, trace in TRACES.items():
        committed, live = map(int, output(program, "trace", text="\n".join(trace) + "\n").split())
        peaks[name] = committed / live
    worst = max(peaks, key=peaks.__getitem__)
    yield at_most("a pool's peak over what is live, worst", peaks[worst], 1.15, note=f"({worst})")
    peers = [name for name, library in PEERS.items() if _has(library)]
    times = _least_times(program, peers)
    for kind, mix in product(("own", "shared"), ("small", "mixed")):
        half, rare = times[mix, kind]
        yield at_most(f"take and give, {kind} pool, {mix}, p50", half, 25, "ns")
        yield at_most(f"take and give, {kind} pool, {mix}, p99.9", rare, 1000, "ns")
    for kind, mix in product(("own", "shared"), ("small", "mixed", "large")):
        for name in ("malloc", *peers):
            ratio = times[mix, kind][0] / times[mix, name][0]
            yield at_most(f"{kind} pool over {name}, {mix}, p50", ratio, 1)
    for name in PEERS.keys() - peers:
        yield absent(f"pools over {name}", "<= 1", "not installed")


def _code_bytes(
    folder: Path, sources: list[Path], include: Path, flags_of: Callable[[Path], Sequence[str]]
) -> int:
    """Returns the bytes of code and data of `sources`, compiled with the flags of an artifact."""
    folder.mkdir()
    includes = ("-w", f"-I{include / 'include'}", f"-I{include / 'src'}")
    for path in sources:
        target = folder / f"{path.parent.name}-{path.stem}.o"
        output("cc", *flags_of(path), *includes, "-c", path, "-o", target)
    rows = output("size", *folder.glob("*.o")).splitlines()[1:]
    return sum(int(row.split()[0]) + int(row.split()[1]) for row in rows)


def code(folder: Path) -> Iterator[Figure]:
    """Yields how much the runtime's code and data have grown since BASE_COMMIT."""
    what = f"growth of an artifact's runtime since {BASE_COMMIT}"
    before = unpack_runtime(BASE_COMMIT, folder / "before")
    if before is None:
        yield absent(what, f"<= {MOST_GROWTH} KiB", f"no commit {BASE_COMMIT}")
        return
    old = [path for path in sorted(before.glob("src/**/*.c")) if "comm" not in path.parts]
    grown = _code_bytes(folder / "now", list(runtime_sources()), RUNTIME, runtime_flags)
    grown -= _code_bytes(folder / "then", old, before, lambda _: RUNTIME_FLAGS)
    yield at_most(what, grown / 1024, MOST_GROWTH, "KiB")
