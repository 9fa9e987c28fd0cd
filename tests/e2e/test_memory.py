"""The weights and the arena of a loaded artifact lie where the system's memory maps show them."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tcc import runtime
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.agreement import FLOAT, assert_agree, model_of, session, value

SIDE = 1024
BYTES = SIDE * SIDE * 4  # the bytes of a matrix
WEIGHT = np.float32(1.1)  # not exact in two bytes, so that the matrix is stored in f32
CHILD = """\
import sys
import numpy as np
from tcc import runtime
from tests.e2e.test_memory import SIDE, pages
model = runtime.load(sys.argv[1], 1)
model(np.ones((SIDE, SIDE), np.float32))
print(pages(sys.argv[1], "Rss"), pages(sys.argv[1], "Pss"))
"""

pytestmark = pytest.mark.xdist_group("artifacts")


def pages(path: str | None, field: str) -> int:
    """Returns the bytes of a field of smaps, summed over this process's read-only mappings of the
    file `path`, or over all memory without a file if None."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            named = words[5] if len(words) > 5 else None
            counts = named == path and (path is None or words[1] == "r--s")
        elif counts and words[0] == f"{field}:":
            total += int(words[1]) * 1024
    return total


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles two consecutive matmuls by one matrix, so that one result lies in the arena."""
    # The sum of each column is WEIGHT. Zeros and equal columns would be left out.
    draws = np.random.default_rng(0).uniform(0.5, 1.5, (SIDE, SIDE))
    weights = (WEIGHT * draws / draws.sum(0)).astype(np.float32)
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["y"]),
        ],
        [value("x", FLOAT, [SIDE, SIDE])],
        [value("y", FLOAT, [SIDE, SIDE])],
        {"w": weights},
    )
    path = tmp_path_factory.mktemp("memory") / "products.so"
    compile_model(model, read_options({"cpu": "host"}), path)
    return path


def test_weights_are_mapped_and_shared(artifact: Path) -> None:
    model = runtime.load(artifact, 1)
    x = np.ones((SIDE, SIDE), np.float32)
    np.testing.assert_allclose(model(x), x * WEIGHT * WEIGHT, rtol=1e-5, atol=1e-5)
    assert pages(str(artifact), "Rss") >= BYTES
    assert pages(str(artifact), "Anonymous") == 0
    child = (sys.executable, "-c", CHILD, str(artifact))
    process = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
    resident, proportional = map(int, process.stdout.split())
    assert resident >= BYTES
    assert proportional < 0.6 * resident  # a page that two processes map counts half in each


def test_the_arena_is_on_huge_pages(artifact: Path) -> None:
    size = 8 << 20
    with mmap.mmap(-1, size) as probe:
        probe.madvise(mmap.MADV_HUGEPAGE)
        before = pages(None, "AnonHugePages")
        probe.write(bytes(size))
        if pages(None, "AnonHugePages") == before:  # nobody can force huge pages
            pytest.skip("this system gives no huge pages")
    before = pages(None, "AnonHugePages")
    model = runtime.load(artifact, 1)
    model(np.ones((SIDE, SIDE), np.float32))
    assert model.statistics().arena_bytes >= BYTES
    assert pages(None, "AnonHugePages") - before >= BYTES


def test_a_large_arena_takes_its_pages_as_it_goes(tmp_path: Path) -> None:
    """An arena of 2 GiB lies between two transforms.

    A load fills an eighth of it, because filling all takes a second on slow memory. The run, which
    would take days, fills the rest.
    """
    constants = {"length": np.array(1 << 28), "axis": np.array(1)}
    nodes = [
        helper.make_node("DFT", ["x", "length", "axis"], ["z"]),
        helper.make_node("DFT", ["z", "", "axis"], ["y"], inverse=1),
    ]
    ports = [value("x", FLOAT, [1, 8, 1])], [value("y", FLOAT, [1, 1 << 28, 2])]
    path = tmp_path / "large.so"
    compile_model(model_of(nodes, *ports, constants), read_options({"jobs": 1}), path)
    script = (
        "import sys; from tcc import runtime; from tests.e2e.test_memory import pages\n"
        "model = runtime.load(sys.argv[1], 1); print(pages(None, 'Size'), pages(None, 'Rss'))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
    )
    size, peak = map(int, process.stdout.split())
    assert size > 2 << 30
    assert peak < (256 + 128) << 20


@pytest.mark.parametrize("rows", [100, 2048])
def test_symbolic_sizes_take_the_arena_of_fixed_sizes(tmp_path: Path, rows: int) -> None:
    """The values of a chain of matmuls and softmaxes alternate between two buffers."""
    arenas, results = [], []
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float32)
    for size in (rows, "n"):
        nodes = []
        for n in range(4):
            nodes.append(helper.make_node("MatMul", [f"s{n}", "w"], [f"m{n}"]))
            nodes.append(helper.make_node("Softmax", [f"m{n}"], [f"s{n + 1}"]))
        ports = value("s0", FLOAT, [size, 64]), value("s4", FLOAT, [size, 64])
        model = model_of(nodes, ports[:1], ports[1:], {"w": np.eye(64, dtype=np.float32)})
        path = compile_model(model, read_options({"cpu": "host"}), tmp_path / f"{size}.so").path
        loaded = runtime.load(path, 1, poison=True)
        results.append(loaded(x))
        arenas.append(loaded.statistics().arena_bytes)
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-6)
    assert 0 < arenas[1] <= 1.05 * arenas[0]


def residual_block(batch: int | str) -> onnx.ModelProto:
    """Returns a block whose shortcut reads every other row and column of a wide value, after the
    main branch has read the value."""
    rng = np.random.default_rng(1)
    convolutions = [  # result, operand, channels in and out, kernel, stride
        ("a", "x", 4, 16, 1, 1), ("c", "b", 16, 8, 1, 1), ("e", "d", 8, 8, 3, 2),
        ("g", "f", 8, 32, 1, 1), ("s", "b", 16, 32, 1, 2), ("y", "r", 32, 4, 1, 1),
    ]  # fmt: skip
    weights = {
        f"w{out}": rng.standard_normal((n, c, k, k)).astype(np.float32)
        for out, _, c, n, k, _ in convolutions
    }
    add_nodes = {
        out: helper.make_node(
            "Conv", [source, f"w{out}"], [out], strides=[step, step], pads=[k // 2] * 4
        )
        for out, source, _, _, k, step in convolutions
    }
    relus = {o: helper.make_node("Relu", [i], [o]) for i, o in ("ab", "cd", "ef", "tr")}
    add = helper.make_node("Add", ["g", "s"], ["t"])
    named = {**add_nodes, **relus, "t": add}
    return model_of(
        [named[name] for name in "abcdefgstry"],
        [value("x", FLOAT, [batch, 4, 9, 7])],
        [value("y", FLOAT, [batch, 4, 5, 4])],
        weights,
    )


def test_parts_of_symbolic_values_are_kept_in_their_places(tmp_path: Path) -> None:
    model = residual_block("n")
    options = read_options({"cpu": "host"})
    path = compile_model(model, options, tmp_path / "open.so").path
    loaded = runtime.load(path, 1, poison=True)
    assert "thin" in loaded.manifest["variants"][0]["steps"]
    for batch in (3, 1, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 4, 9, 7)).astype(np.float32)
        (reference,) = session(model).run(None, {"x": x})
        assert_agree({"y": loaded(x)}, {"y": reference})
    fixed = compile_model(residual_block(3), options, tmp_path / "fixed.so").path
    arena = runtime.load(fixed, 1).statistics().arena_bytes
    assert loaded.statistics().arena_bytes <= 1.05 * arena
