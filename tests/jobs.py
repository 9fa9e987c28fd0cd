"""The processes of a job that a launcher started, found by a variable of their environment."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.draws import RNG, seeded

MARK = "TCC_TEST_JOB"  # no launcher changes this variable
_RANKS = ("TCC_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def rank_processes(mark: str) -> dict[int, int]:
    """Returns the process ids of the job with this mark, by rank."""
    processes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            pairs = (row.partition(b"=") for row in (folder / "environ").read_bytes().split(b"\0"))
            variables = {os.fsdecode(name): os.fsdecode(text) for name, _, text in pairs}
            rank = next((variables[name] for name in _RANKS if name in variables), None)
            if variables.get(MARK) == mark and rank is not None:
                # a helper process of a launcher may have the variables too; the rank is the
                # youngest process
                processes[int(rank)] = max(int(folder.name), processes.get(int(rank), 0))
    return processes


def is_loaded(process: int, artifact: Path) -> bool:
    """Returns True if the process has mapped the weights of an artifact."""
    try:
        return str(artifact) in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def wait_for_ends(processes: Sequence[int], seconds: float) -> list[int]:
    """Waits at most `seconds` for the end of each process; returns the processes that still
    live."""
    alive = []
    for process in processes:
        try:
            end = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        waiting = select.poll()
        waiting.register(end, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            alive.append(process)
        os.close(end)
    return alive


def long_model(rows: int = 20_000, layers: int = 200, width: int = 512) -> onnx.ModelProto:
    """Returns layers that read one matrix: few bytes to store, and seconds of work in a run."""
    with seeded("long"):
        w = RNG.standard_normal((width, width)).astype("float32") / width**0.5
    names = ["x", *(f"h{n}" for n in range(2 * layers - 1)), "y"]
    nodes = []
    for n in range(layers):
        a, b, c = names[2 * n : 2 * n + 3]
        nodes += [helper.make_node("MatMul", [a, "w"], [b]), helper.make_node("Relu", [b], [c])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, width]) for n in "xy"]
    graph = helper.make_graph(
        nodes, "long", ports[:1], ports[1:], [numpy_helper.from_array(w, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
