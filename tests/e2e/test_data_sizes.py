"""Extremes of data-dependent sizes: nothing found, everything found, and inputs without
elements."""

from __future__ import annotations

import numpy as np
import pytest
import tcc
from onnx import helper

from tests.lib.agreement import (
    BOOL,
    FLOAT,
    INT64,
    Array,
    assert_agree,
    expected,
    model_of,
    session,
    value,
)

node = helper.make_node


def test_places_choices_and_different_values_of_symbolic_arrays() -> None:
    model = model_of(
        [
            node("NonZero", ["x"], ["at"]),
            node("Compress", ["x", "kept"], ["rows"], axis=0),
            node("Compress", ["x", "kept"], ["flat"]),
            node("ReduceSum", ["rows"], ["total"], keepdims=1),
            node("Unique", ["x"], ["values", "first", "back", "count"]),
            node("Unique", ["x"], ["different"], axis=0),
            node("Gather", ["values", "back"], ["same"]),
        ],
        [value("x", FLOAT, ["n", "m"]), value("kept", BOOL, ["k"])],
        [
            value("at", INT64, [2, "a"]), value("rows", FLOAT, ["r", "m"]),
            value("flat", FLOAT, ["f"]), value("total", FLOAT, [1, 1]),
            value("values", FLOAT, ["u"]), value("first", INT64, ["u"]),
            value("count", INT64, ["u"]), value("different", FLOAT, ["d", "m"]),
            value("same", FLOAT, ["s"]),
        ],
    )  # fmt: skip
    module, runner = tcc.compile(model, jobs=1), session(model)
    distinct = np.arange(15, dtype=np.float32).reshape(5, 3)
    equal = np.ones((5, 3), np.float32)
    for x in (distinct, equal, equal * 0, distinct[:1], distinct[:, :1]):
        for mask in ([True] * 5, [False] * 5, [False, True], []):
            inputs = {"x": x, "kept": np.array(mask[: len(x)], bool)}
            assert_agree(module.run(inputs), expected(runner, inputs), 1e-6)


def boxes(count: int, apart: bool) -> Array:
    """Returns squares that are apart, or all equal."""
    corner = np.arange(count, dtype=np.float32)[:, None] * (10.0 if apart else 0.0)
    return np.concatenate([corner, corner, corner + 1, corner + 1], 1)[None].astype(np.float32)


def test_boxes_that_are_all_kept_or_none() -> None:
    model = model_of(
        [
            node(
                "NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]
            ),
            node("Cast", ["chosen"], ["y"], to=FLOAT),
        ],
        [value("boxes", FLOAT, [1, "n", 4]), value("scores", FLOAT, [1, "c", "n"])]
        + [value("most", INT64, [1])]
        + [value(name, FLOAT, [1]) for name in ("overlap", "least")],
        [value("y", FLOAT, ["k", 3])],
    )  # fmt: skip
    module, runner = tcc.compile(model, jobs=1), session(model)
    cases = ((6, 2, 9, 0.0), (6, 2, 0, 0.0), (6, 2, 2, 0.0), (6, 2, 9, 2.0), (1, 1, 1, 0.0))
    for count, classes, most, least in cases:
        for is_apart in (True, False):
            scores = np.random.default_rng(0).random((1, classes, count)).astype(np.float32)
            inputs = {
                "boxes": boxes(count, is_apart),
                "scores": scores,
                "most": np.array([most]),
                "overlap": np.array([0.5], np.float32),
                "least": np.array([least], np.float32),
            }
            assert_agree(module.run(inputs), expected(runner, inputs), 0)
    nothing = {"boxes": boxes(0, True), "scores": np.zeros((1, 2, 0), np.float32)}
    assert module.run({**inputs, **nothing})["y"].shape == (0, 3)


def test_sizes_below_zero_are_refused_also_where_two_of_them_give_as_many_elements() -> None:
    """-2 by -3 is also 6; the parts of a split of 6 may be 8 and -2."""
    model = model_of(
        [
            node("Reshape", ["x", "s"], ["r"]),
            node("Split", ["x", "s"], ["a", "b"]),
            node("ReduceSum", ["a"], ["c"], keepdims=0),
            node("ReduceMax", ["r"], ["y"], keepdims=0),
        ],
        [value("x", FLOAT, ["n"]), value("s", INT64, [2])],
        [value("y", FLOAT, []), value("c", FLOAT, [])],
    )
    module, x = tcc.compile(model, jobs=1), np.arange(4, dtype=np.float32)
    assert module.run({"x": x, "s": np.array([2, 2])})["c"] == 1
    for sizes in ([-2, -2], [6, -2], [-2, 6]):
        with pytest.raises(tcc.UserError, match="at least 0 is due"):
            module.run({"x": x, "s": np.array(sizes)})


def test_a_symbolic_axis_that_is_removed_or_read_as_a_scalar_has_one_element() -> None:
    model = model_of(
        [
            node("Squeeze", ["x", "one"], ["s"]),
            node("Range", ["zero", "k", "step"], ["r"]),
        ],
        [value("x", FLOAT, ["n", "m"]), value("k", INT64, ["t"])],
        [value("s", FLOAT, ["n"]), value("r", INT64, ["c"])],
        {"one": np.array([1]), "zero": np.array(0), "step": np.array(1)},
    )
    module, runner = tcc.compile(model, jobs=1), session(model)
    inputs = {"x": np.ones((2, 1), np.float32), "k": np.array([3])}
    assert_agree(module.run(inputs), expected(runner, inputs), 0)
    for name, array in (
        ("x", np.ones((2, 2), np.float32)),
        ("x", np.ones((2, 0), np.float32)),
        ("k", np.array([3, 4])),
        ("k", np.array([], np.int64)),
    ):
        with pytest.raises(tcc.UserError, match="a reshape keeps all elements"):
            module.run({**inputs, name: array})


def test_the_length_of_a_range_of_integers_is_exact() -> None:
    """The length is exact where doubles do not distinguish the ends, and for constant ranges
    too."""
    model = model_of(
        [node("Range", ["start", "limit", "step"], ["y"])],
        [value(name, INT64, []) for name in ("start", "limit", "step")],
        [value("y", INT64, ["n"])],
    )
    module = tcc.compile(model, jobs=1)
    for start, limit, step in (
        (0, 5, 2),
        (1 << 60, (1 << 60) + 3, 1),
        (1 << 62, (1 << 62) - 7, -3),
    ):
        inputs = {"start": np.array(start), "limit": np.array(limit), "step": np.array(step)}
        assert module.run(inputs)["y"].tolist() == list(range(start, limit, step))
    ends = {"start": np.array(-(1 << 63)), "limit": np.array((1 << 63) - 1), "step": np.array(1)}
    with pytest.raises(tcc.TccError):
        module.run(ends)
