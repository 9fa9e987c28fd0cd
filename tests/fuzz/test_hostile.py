"""Hostile files that are refused before code generation, in this process; `scripts/hostile` runs
all hostile files, each in a new process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from tcc.errors import UserError
from tcc.frontends import load_model

from tests.lib.fuzz.hostile import cases
from tests.lib.fuzz.hostile_artifacts import cases as artifacts
from tests.lib.fuzz.hostile_case import Action, Outcome, text_model

CASES = cases()
# The script takes files that may be valid models, and files that only a run can refuse.
REFUSED = [
    case
    for case in CASES
    if case.outcome is Outcome.REFUSED
    and case.action is Action.COMPILE
    and not case.name.startswith("attribute-gather-constant")
]


def test_there_are_enough_of_every_kind() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 400
    kinds = {name.split("-")[0] for name in names}
    assert {"bytes", "tensor", "external", "graph", "function", "attribute"} <= kinds
    assert {"bomb", "name", "run", "artifact", "sparse", "archive"} <= kinds


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_import_refuses(case: object, tmp_path: Path) -> None:
    case.write_to(tmp_path / "case")  # type: ignore[attr-defined]
    (model,) = (tmp_path / "case").glob("m.*")
    with pytest.raises(UserError) as error:
        load_model(model)
    assert error.value.what


@pytest.mark.parametrize(
    "case", [c for c in artifacts() if c.outcome is Outcome.REFUSED], ids=lambda c: c.name
)
def test_damaged_artifacts_are_refused(case: object, tmp_path: Path) -> None:
    case.write_to(tmp_path)  # type: ignore[attr-defined]
    with pytest.raises(UserError):
        tcc.load(tmp_path / "m.so")


def test_each_flipped_bit_of_the_image_is_seen(tmp_path: Path) -> None:
    clean = next(case for case in artifacts() if case.name == "artifact-clean")
    clean.write_to(tmp_path)
    path = tmp_path / "m.so"
    data = path.read_bytes()
    size = len(data.partition(b"TCCSEAL\0")[0])
    for at in range(64, size, size // 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(UserError):
            tcc.load(path)


def _module(text: str, opset: int = 21) -> tcc.Module:
    model: onnx.ModelProto = text_model(text, opset)
    return tcc.compile(model, cpu="x86-64-v3", jobs=1, level=1)


def test_indices_outside_of_their_axis_name_their_node() -> None:
    module = _module(
        "g (float[n,3] x, int64[2] i, int32[2,1] j) => (float[a,b] y, float[c,d] z) "
        "{ [rows] y = Gather (x, i) [pairs] z = GatherND (x, j) }"
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    good, pairs = np.array([3, -4]), np.array([[0], [-1]], np.int32)
    np.testing.assert_array_equal(module.run({"x": x, "i": good, "j": pairs})["y"], x[good])
    for bad in (4, -5, 1 << 62):
        with pytest.raises(Exception, match=r"rows \(Gather\): an index is outside of its axis"):
            module.run({"x": x, "i": np.array([0, bad]), "j": pairs})
    with pytest.raises(Exception, match=r"pairs \(GatherND\): an index is outside of its axis"):
        module.run({"x": x, "i": good, "j": pairs + np.int32(4)})


def test_constant_indices_beyond_an_open_axis_name_their_node() -> None:
    module = _module(
        "g (float[n,3] x) => (float[3] y, float[3] z) { first = Constant <value = int64 {1}> ()"
        "  last = Constant <value = int64 {-3}> ()"
        "  [second] y = Gather (x, first) [third] z = Gather (x, last) }"
    )
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_array_equal(module.run({"x": x})["y"], x[1])
    for rows, node in ((2, "third"), (1, "second"), (0, "second")):
        with pytest.raises(UserError, match=rf"{node} \(Gather\).* index is outside of its axis"):
            module.run({"x": x[:rows]})


@pytest.mark.parametrize("ignored", ["", "<ignore_index = 9>"])
def test_labels_of_no_class_name_their_node(ignored: str) -> None:
    module = _module(
        "g (float[n,3] x, int64[n] l) => (float y) "
        f"{{ [loss] y = SoftmaxCrossEntropyLoss {ignored} (x, l) }}"
    )
    x = np.array([[1, 2, 3], [4, 6, 5]], np.float32)

    def loss(*labels: int) -> np.ndarray:
        return module.run({"x": x, "l": np.array(labels)})["y"]

    np.testing.assert_array_equal(loss(2, -2), loss(2, 1))
    if ignored:
        np.testing.assert_allclose(loss(2, 9), 0.40760596, rtol=0, atol=4e-7)
    for bad in (3, -4, 1 << 40):
        with pytest.raises(UserError, match=r"loss \(Soft.*: an index is outside of its axis"):
            loss(0, bad)


@pytest.mark.parametrize(
    "body",
    [
        *(
            f'p = Constant <value = int64[4] {{1, 0, 2, 0}}> () [wide] y = Pad <mode="{m}"> (x, p)'
            for m in ("edge", "reflect", "wrap")
        ),
        *(
            "s = Constant <value = int64[2] {5, 3}> ()"
            f'  [wide] y = Resize <mode = "{m}"> (x, , , s)'
            for m in ("nearest", "linear")
        ),
    ],
)
def test_a_symbolic_axis_without_elements_to_repeat_names_its_node(body: str) -> None:
    module = _module(f"g (float[n,3] x) => (float[a,b] y) {{ {body} }}")
    assert len(module.run({"x": np.ones((2, 3), np.float32)})["y"]) == 5
    with pytest.raises(UserError, match=r"wide .*an axis without elements has none to repeat"):
        module.run({"x": np.ones((0, 3), np.float32)})


def test_a_symbolic_axis_without_elements_to_choose_names_its_node() -> None:
    module = _module("g (float[n,m] x) => (int64[m] y) { [best] y = ArgMax <keepdims = 0> (x) }")
    assert module.run({"x": np.ones((0, 0), np.float32)})["y"].shape == (0,)
    with pytest.raises(UserError, match=r"best .*an axis without elements has none to choose"):
        module.run({"x": np.ones((0, 3), np.float32)})


def test_an_axis_without_elements_to_repeat_is_refused() -> None:
    with pytest.raises(UserError, match="no elements to repeat"):
        _module(
            "g (float[0] x) => (float[a] y) { p = Constant <value = int64[2] {1, 0}> ()"
            '  y = Pad <mode = "edge"> (x, p) }'
        )


def test_positions_beyond_a_table_of_angles_name_their_node() -> None:
    module = _module(
        "g (float[1,2,3,4] x, int64[1,3] p, float[n,2] c, float[n,2] s) => (float[a,b,c,d] y) "
        "{ [turned] y = com.microsoft.RotaryEmbedding (x, p, c, s) }"
    )
    table = np.ones((3, 2), np.float32)
    inputs = {"x": np.ones((1, 2, 3, 4), np.float32), "c": table, "s": table}
    module.run(inputs | {"p": np.array([[0, 1, 2]])})
    with pytest.raises(Exception, match=r"turned \(RotaryEmbedding\): an index is outside"):
        module.run(inputs | {"p": np.array([[0, 1, 3]])})


def test_rows_that_a_cache_has_no_room_for_name_their_node() -> None:
    module = _module(
        "g (float[2,n,3] c, float[2,m,3] u, int64[2] at) => (float[2,n,3] y, float[2,n,3] z) {"
        "  [fixed] y = TensorScatter (c, u, at)"
        '  [ring] z = TensorScatter <mode = "circular"> (c, u, at) }',
        opset=24,
    )

    def run(rows: int, *at: int) -> dict[str, np.ndarray]:
        new = np.ones((2, rows, 3), np.float32)
        return module.run({"c": np.zeros((2, 4, 3), np.float32), "u": new, "at": np.array(at)})

    np.testing.assert_array_equal(run(2, 0, 2)["y"][:, :, 0], [[1, 1, 0, 0], [0, 0, 1, 1]])
    assert not run(0, 4, 0)["y"].any()
    for rows, at in ((2, (3, 0)), (2, (0, -1)), (1, (1 << 62, 0))):
        with pytest.raises(UserError, match=r"fixed \(Tensor.*a cache has no room for the rows"):
            run(rows, *at)
    with pytest.raises(UserError, match=r"ring \(Tensor.*a cache has no room for the rows"):
        run(5, 0, 0)


def test_rows_behind_a_cache_are_refused() -> None:
    text = (
        "g (float[2,{}] c, float[2,{}] u) => (float[2,n] y) {{ y = TensorScatter <axis=1> (c, u) }}"
    )
    module = _module(text.format("n", "m"), opset=24)
    cache = np.zeros((2, 3), np.float32)
    assert module.run({"c": cache, "u": cache + 1})["y"].all()
    with pytest.raises(UserError, match="a cache has no room for the rows"):
        module.run({"c": cache[:, :2], "u": cache})
    with pytest.raises(UserError, match="has no room for"):
        _module(text.format(3, 4), opset=24)


def test_elements_that_were_sorted_are_no_places() -> None:
    module = _module(
        "g (float[9,4] x, int64[9] i) => (float[3,4] y) "
        "{ k = Constant <value_ints = [3]> () v, p = TopK (i, k) [rows] y = Gather (x, v) }"
    )
    x = np.arange(36, dtype=np.float32).reshape(9, 4)
    np.testing.assert_array_equal(module.run({"x": x, "i": np.arange(9)})["y"], x[[8, 7, 6]])
    with pytest.raises(Exception, match=r"rows \(Gather\): an index is outside of its axis"):
        module.run({"x": x, "i": np.arange(9) + 1})


def test_a_reshape_to_sizes_that_do_not_fit_is_refused() -> None:
    module = _module("g (float[n] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }")
    x = np.arange(6, dtype=np.float32)
    assert module.run({"x": x, "s": np.array([2, 3])})["y"].shape == (2, 3)
    with pytest.raises(Exception, match="a reshape keeps all elements"):
        module.run({"x": x, "s": np.array([5, 5])})
