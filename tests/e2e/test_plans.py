"""One artifact holds plans for several numbers of ranks.

Each process loads the plan and the weights of its rank, and all give the results of one rank.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.artifact import find_weights, load, read_manifest
from tcc.driver import compile_model
from tcc.ir.graph import Graph
from tcc.options import read_options

from tests.columns import by_columns
from tests.commands import command
from tests.draws import RNG, seeded
from tests.ranks import on_ranks, run_ranks

Array = np.ndarray[Any, np.dtype[Any]]
IN, HIDDEN, OUT = 96, 512, 64


def drawn_weights() -> dict[str, Array]:
    shapes = {"w1": (IN, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUT), "w3": (HIDDEN, OUT)}
    return {n: (RNG.standard_normal(s) / 16).astype(np.float32) for n, s in shapes.items()}


with seeded("plans"):
    WEIGHTS, X = drawn_weights(), RNG.standard_normal((8, IN)).astype(np.float32)


def mlp(rows: int | str = 8) -> onnx.ModelProto:
    """Returns two layers; the second has two matrices that read the same rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Add", ["h", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
        helper.make_node("MatMul", ["r", "w3"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, IN])
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, OUT]) for n in "yz"]
    constants = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "mlp", [x], outs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def one_plan(ranks: int) -> list[Callable[[Graph], Graph]]:
    return [by_columns(ranks)]


def reference(x: Array) -> dict[str, Array]:
    """Returns the results in float64."""
    w = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    hidden = np.maximum(x.astype(np.float64) @ w["w1"] + w["b1"], 0)
    return {"y": hidden @ w["w2"], "z": hidden @ w["w3"]}


def made(folder: Path, name: str, **choices: Any) -> Path:
    options = read_options({"jobs": 1, **choices})
    compile_model(mlp(), options, folder / f"{name}.so", sharders=one_plan)
    return folder / f"{name}.so"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    made(folder, "mlp", ranks="1,2,4")
    return folder


def assert_close(found: Mapping[str, Array], tolerance: float = 1e-5, x: Array = X) -> None:
    for name, exact in reference(x).items():
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_agree_with_numpy_and_with_one_another(
    comm_library: Path, folder: Path, ranks: int
) -> None:
    results = on_ranks(folder, comm_library, {"mlp": [{"x": X}] * ranks})["mlp"]
    assert_close(results[0])
    for outputs in results[1:]:
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, results[0][name], strict=True)


def test_one_process_alone_runs_the_plan_for_one_rank(folder: Path) -> None:
    module = load(folder / "mlp.so")
    assert (module.variant, module.ranks) == (0, -1)
    assert_close(module.run({"x": X}))


def test_weights_of_every_rank_lie_in_the_file_once(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder / "mlp.so")
    one, two, four = manifest["variants"]
    assert "ranks" not in one
    assert [two["ranks"], four["ranks"]] == [2, 4]
    total_bytes = 4 * sum(array.size for array in WEIGHTS.values())
    for entry, ranks in ((two, 2), (four, 4)):
        share = 4 * (sum(a.size for n, a in WEIGHTS.items() if n != "b1") // ranks + HIDDEN)
        assert share <= entry["weights"]["bytes"] <= share + 4 * 4096  # weights begin at pages
        assert len(set(entry["weights"]["offsets"])) == ranks
    assert one["weights"]["bytes"] >= total_bytes
    # A plan that divides nothing shares the weights of the plan for one rank.
    options = read_options({"jobs": 1, "ranks": (1, 2)})
    compile_model(mlp(), options, tmp_path / "m.so", sharders=lambda _: [lambda graph: graph])
    one, two = read_manifest(tmp_path / "m.so")["variants"]
    assert two["weights"]["offsets"] == [one["weights"]["offset"]] * 2


@pytest.mark.parametrize(
    ("choices", "tolerance"),
    [({"precision": "bf16"}, 2e-2), ({"weights": "int8"}, 3e-2), ({"level": 0}, 1e-5)],
    ids=["bf16", "int8", "O0"],
)
def test_weights_are_narrowed_for_every_rank(
    comm_library: Path, tmp_path: Path, choices: dict[str, Any], tolerance: float
) -> None:
    made(tmp_path, "mlp", ranks=2, **choices)
    results = on_ranks(tmp_path, comm_library, {"mlp": [{"x": X}] * 2})["mlp"]
    assert_close(results[0], tolerance)
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name], strict=True)


def test_open_sizes_and_buckets_have_every_plan(comm_library: Path, tmp_path: Path) -> None:
    options = read_options({"jobs": 1, "ranks": 2, "buckets": {"rows": [4]}})
    compile_model(mlp("rows"), options, tmp_path / "mlp.so", sharders=one_plan)
    for rows in (4, 7):
        x = X[:rows]
        results = on_ranks(tmp_path, comm_library, {"mlp": [{"x": x}] * 2})["mlp"]
        assert_close(results[0], x=x)
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, results[1][name], strict=True)


def tcc(library: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command(folder, *words, TCC_COMM_LIBRARY=str(library))


def test_tcc_run_starts_the_ranks_of_a_plan(comm_library: Path, folder: Path) -> None:
    np.save(folder / "x.npy", X)
    words = ("run", "mlp.so", "--input", "x=@x.npy", "--nproc")
    ended = tcc(comm_library, folder, *words, "2", "--output", "out{rank}")
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        assert_close({name: np.load(folder / f"out{rank}" / f"{name}.npy") for name in "yz"})


def test_another_number_of_ranks_is_an_error_that_names_both(
    comm_library: Path, folder: Path
) -> None:
    ended = tcc(comm_library, folder, "run", "mlp.so", "--nproc", "3")
    assert ended.returncode == 2
    assert "the job has 3 ranks" in ended.stderr
    assert "was compiled for these numbers of ranks: 1, 2, 4" in ended.stderr


LATER = """
import sys
import tcc
from tcc.runtime import comm as comms

whole = comms.open()
path = sys.argv[1]
module = tcc.load(path, comm=whole)
turned = whole.split(0, -whole.rank)  # the ranks in reverse order
half = whole.split(whole.rank // 2)
for comm in (turned, half):
    try:
        tcc.load(path, comm=comm)
    except tcc.TccError as error:
        print(" ".join(str(error).split()))
"""


def test_a_loaded_model_refuses_other_comms(comm_library: Path, folder: Path) -> None:
    printed = run_ranks(4, LATER, comm_library, folder / "mlp.so")
    for rank, text in enumerate(printed):
        other_rank, half = text.splitlines()
        assert f"loaded for rank {rank} of 4" in other_rank
        assert f"this process is rank {3 - rank}" in other_rank
        assert "loaded for 4 ranks, its comm has 2 (the file has plans for 1, 2, 4)" in half


SHARED = """
import sys
import numpy as np
import tcc
from tcc.runtime import comm as comms

with comms.open() as comm:
    comm.share()
    module = tcc.load(sys.argv[1])
    x = np.load(sys.argv[2])
    y = module.run({"x": x})["y"]
    print(module.variant, module.statistics().weight_bytes, float(np.abs(y).sum()))
    # Code is loaded from a copy in memory: what is mapped of the file are weights.
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(sys.argv[1])]
    mine = [words for words in lines if words[1].startswith("r")]
    ranges = [[int(end, 16) for end in words[0].split("-")] for words in mine]
    print(sum(end - begin for begin, end in ranges), int(mine[0][2], 16))
"""


def test_the_process_comm_chooses_the_plan(comm_library: Path, folder: Path) -> None:
    np.save(folder / "x.npy", X)
    printed = run_ranks(2, SHARED, comm_library, folder / "mlp.so", folder / "x.npy")
    entry = read_manifest(folder / "mlp.so")["variants"][1]
    numbers = [text.split() for text in printed]
    assert {n[0] for n in numbers} == {"1"}
    assert {int(n[1]) for n in numbers} == {entry["weights"]["bytes"]}
    assert len({n[2] for n in numbers}) == 1
    # A rank maps only its own weights.
    weights = find_weights(folder / "mlp.so", read_manifest(folder / "mlp.so"))
    assert weights is not None
    for offset, n in zip(entry["weights"]["offsets"], numbers, strict=True):
        pages = -(-entry["weights"]["bytes"] // 4096) * 4096
        assert [*map(int, n[3:])] == [pages, weights.offset + offset]


def test_a_file_without_a_plan_for_one_rank_says_how_to_start(
    comm_library: Path, tmp_path: Path
) -> None:
    made(tmp_path, "mlp", ranks=2)
    ended = tcc(comm_library, tmp_path, "run", "mlp.so", "--json")
    assert ended.returncode == 2
    assert "the job has 1 rank, and model 'mlp' was compiled for these numbers of ranks: 2" in (
        ended.stderr
    )
    assert json.loads(json.dumps(ended.stdout)) == ""


# ---- plans of the planner ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the same model on the command line for one, two and four ranks."""
    folder = tmp_path_factory.mktemp("planned")
    onnx.save(mlp(), folder / "mlp.onnx")
    ended = tcc(comm_library, folder, "compile", "mlp.onnx", "--ranks", "1,2,4")
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_planner_divides_weights_and_keeps_results(
    comm_library: Path, planned: Path, ranks: int
) -> None:
    results = on_ranks(planned, comm_library, {"mlp": [{"x": X}] * ranks})["mlp"]
    assert_close(results[0])
    single = load(planned / "mlp.so").run({"x": X})
    for outputs in results:
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, results[0][name], strict=True)
            largest = np.abs(single[name]).max()
            np.testing.assert_allclose(array, single[name], rtol=0, atol=1e-5 * largest)
    one, *divided = read_manifest(planned / "mlp.so")["variants"]
    entry = next(entry for entry in divided if entry["ranks"] == ranks)
    assert entry["weights"]["bytes"] < 1.1 * one["weights"]["bytes"] / ranks + 4 * 4096


def test_a_step_of_a_later_plan_is_reached(comm_library: Path, planned: Path) -> None:
    words = ("compile", "mlp.onnx", "--ranks", "1,2", "--stop-after")
    ended = tcc(comm_library, planned, *words, "shard")
    assert ended.returncode == 0, ended.stderr
    assert " on 2 ranks : f32[" in ended.stdout
    ended = tcc(comm_library, planned, *words, "sign-operands")
    assert ended.returncode == 2
    assert "this compile does not have the step" in ended.stderr
