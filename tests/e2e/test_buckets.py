"""Buckets: chosen sizes have special code beside the general code for all other sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import runtime
from tcc.errors import UserError

from tests.lib.agreement import (
    FLOAT,
    INT64,
    Array,
    assert_agree,
    expected,
    model_of,
    session,
    value,
)

from .test_symbolic_sizes import attention, normal

node = helper.make_node


def steps_of_runs(path: Path, *shapes: tuple[int, ...]) -> list[frozenset[int]]:
    """Returns, for each input shape, the numbers of the artifact's launches and calls that ran."""
    step_sets = []
    for shape in shapes:
        module = runtime.load(path, timed=True, error=UserError)
        module.run({module.inputs[0].name: normal(*shape)})
        step_sets.append(frozenset(n for n, time in enumerate(module.times()) if time.count))
    return step_sets


def test_sizes_of_buckets_run_code_of_their_own(tmp_path: Path) -> None:
    model = model_of(
        [
            node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            node("MatMul", ["x", "t"], ["a"]),
            node("Softmax", ["a"], ["y"]),
        ],
        [value("x", FLOAT, ["b", "s", 16])],
        [value("y", FLOAT, ["b", "s", "s"])],
    )
    module = tcc.compile(model, jobs=1, buckets={"b": [1, 2], "s": (7, 64)})
    runner = session(model)
    sizes = ((1, 7), (1, 64), (2, 7), (2, 64), (1, 8), (3, 64), (2, 1), (0, 7))
    for feeds in ({"x": normal(b, s, 16)} for b, s in sizes):
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-5)
    (variant,) = module.manifest["variants"]
    assert variant["buckets"] == [{"b": b, "s": s} for b in (1, 2) for s in (7, 64)]
    module.save(tmp_path / "m.so")
    small, large, other, between = steps_of_runs(
        tmp_path / "m.so", (1, 7, 16), (2, 64, 16), (1, 8, 16), (3, 64, 16)
    )
    assert other == between
    assert len(small) + len(large) + len(other) == len(small | large | other)


def test_weights_of_all_buckets_are_there_once() -> None:
    """A bucket with few rows does not merge matrices that the general code reads separately."""
    model = model_of(
        [
            node("MatMul", ["x", "q"], ["a"]),
            node("MatMul", ["x", "k"], ["b"]),
            node("Softmax", ["a"], ["p"]),
            node("ReduceSum", ["b"], ["t"], keepdims=0),
        ],
        [value("x", FLOAT, ["s", 256])],
        [value("p", FLOAT, ["s", 256]), value("t", FLOAT, [])],
        {"q": normal(256, 256), "k": normal(256, 256)},
    )
    module = tcc.compile(model, jobs=1, buckets={"s": [2]})
    plain = tcc.compile(model, jobs=1)
    assert module.manifest["weights"]["bytes"] == plain.manifest["weights"]["bytes"]
    for s in (2, 3):
        feeds = {"x": normal(s, 256)}
        assert_agree(module.run(feeds), expected(session(model), feeds), 1e-4)


def test_weights_lie_as_a_bucket_wants_them_for_all_sizes() -> None:
    """A bucket of eight rows prefers other panels than a typical number of rows; the general code
    takes over the bucket's panels."""
    model = model_of(
        [node("MatMul", ["x", "q"], ["y"])],
        [value("x", FLOAT, ["s", 128])],
        [value("y", FLOAT, ["s", 320])],
        {"q": normal(128, 320)},
    )
    module = tcc.compile(model, jobs=1, buckets={"s": [8]})
    assert module.manifest["weights"]["bytes"] == 128 * 320 * 4
    for s in (0, 3, 8, 67):
        feeds = {"x": normal(s, 128)}
        assert_agree(module.run(feeds), expected(session(model), feeds), 1e-4)


def test_outputs_whose_size_data_decide() -> None:
    """The size of one output also depends on the bucket's size; another output is the input
    itself."""
    model = model_of(
        [
            node("NonZero", ["x"], ["at"]),
            node("Relu", ["x"], ["y"]),
            node("Identity", ["x"], ["same"]),
        ],
        [value("x", FLOAT, ["s"])],
        [value("at", INT64, [1, "k"]), value("y", FLOAT, ["s"]), value("same", FLOAT, ["s"])],
    )
    module, runner = tcc.compile(model, jobs=1, buckets={"s": [4, 5]}), session(model)
    for x in (np.zeros(4), np.ones(4), np.array([0, 1, 0, 2, 0]), np.arange(6), np.zeros(0)):
        feeds = {"x": x.astype(np.float32)}
        assert_agree(module.run(feeds), expected(runner, feeds), 0)


def test_scans_over_a_bucket() -> None:
    body = helper.make_graph(
        [
            node("Add", ["s", "e"], ["t"]),
            node("Tanh", ["t"], ["next"]),
            node("Neg", ["t"], ["row"]),
        ],
        "body",
        [value("s", FLOAT, [3]), value("e", FLOAT, [3])],
        [value("next", FLOAT, [3]), value("row", FLOAT, [3])],
    )
    model = model_of(
        [node("Scan", ["init", "x"], ["last", "rows"], body=body, num_scan_inputs=1)],
        [value("x", FLOAT, ["s", 3])],
        [value("last", FLOAT, [3]), value("rows", FLOAT, ["s", 3])],
        {"init": normal(3)},
    )
    module, runner = tcc.compile(model, jobs=1, buckets={"s": [1, 6]}), session(model)
    for s in (1, 6, 2, 9):
        feeds = {"x": normal(s, 3)}
        assert_agree(module.run(feeds), expected(runner, feeds), 1e-6)


def cache() -> onnx.ModelProto:
    return model_of(
        [
            node("Concat", ["past", "new"], ["present"], axis=0),
            node("MatMul", ["present", "w"], ["y"]),
        ],
        [value("past", FLOAT, ["p", 8]), value("new", FLOAT, [1, 8])],
        [value("y", FLOAT, ["q", 4]), value("present", FLOAT, ["q", 8])],
        {"w": normal(8, 4)},
    )


def test_states_are_updated_in_place_in_every_bucket() -> None:
    model = cache()
    module = tcc.compile(model, jobs=1, state={"past": "present"}, buckets={"p": [4]})
    for p in (3, 4, 5):
        rows = normal(p + 1, 8)
        array, new = rows.copy(), rows[-1:]
        array[-1] = 0
        outputs = module.run({"past": array, "new": new})
        assert outputs["present"].ctypes.data == array.ctypes.data
        reference = expected(session(model), {"past": rows[:-1], "new": new})
        assert_agree(outputs, reference, 1e-5)


def test_wrong_sizes_are_refused_before_a_bucket_is_chosen() -> None:
    model = model_of(
        [node("Add", ["x", "y"], ["z"])],
        [value("x", FLOAT, ["s", 2]), value("y", FLOAT, ["s", 2])],
        [value("z", FLOAT, ["s", 2])],
    )
    module = tcc.compile(model, jobs=1, buckets={"s": [4]})

    def wrong(x: Array, y: Array) -> None:
        with pytest.raises(UserError, match=r"s is due|2"):
            module.run({"x": x, "y": y})

    wrong(normal(4, 2), normal(5, 2))
    wrong(normal(5, 2), normal(4, 2))
    wrong(normal(4, 3), normal(4, 3))
    assert module.run({"x": normal(4, 2), "y": normal(4, 2)})["z"].shape == (4, 2)


@pytest.mark.parametrize(
    ("buckets", "why"),
    [
        ({"t": [1]}, "no input has a symbolic size 't'"),
        ({"s": [0]}, "at least 1"),
        ({"s": []}, "needs a size"),
        ({"s": "4,x"}, "at least 1"),
        ({"s": range(1, 40)}, "more than 32 buckets"),
    ],
)
def test_bad_buckets_are_refused_by_name(buckets: dict[str, list[int]], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tcc.compile(attention(), jobs=1, buckets=buckets)
