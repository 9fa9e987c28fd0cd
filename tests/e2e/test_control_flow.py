"""Compiled If, Loop and Scan agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc.runtime import Module

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


def body(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs))


def check(model: onnx.ModelProto, *feeds: Mapping[str, Array]) -> Module:
    module = tcc.compile(model, jobs=1)
    runner = session(model)
    for inputs in feeds:
        assert_agree(module.run(inputs), expected(runner, inputs), 1e-5)
    return module


def ramp(*shape: int) -> Array:
    return (np.arange(np.prod(shape, dtype=int)) * 0.25 - 1).astype(np.float32).reshape(shape)


# ---- If ------------------------------------------------------------------------------------------


def branches(then: Sequence[Any], otherwise: Sequence[Any], *results: str) -> onnx.NodeProto:
    outputs = [value(name, FLOAT, None) for name in results]
    return node(
        "If",
        ["c"],
        [f"{name}_" for name in results],
        then_branch=body(then, [], outputs),
        else_branch=body(otherwise, [], outputs),
    )


def test_if_takes_either_side_and_reads_values_around_it() -> None:
    model = model_of(
        [
            node("Neg", ["x"], ["n"]),
            branches([node("Exp", ["n"], ["r"])], [node("Add", ["x", "n"], ["r"])], "r"),
            node("Add", ["r_", "x"], ["y"]),
        ],
        [value("c", BOOL, []), value("x", FLOAT, ["n", 3])],
        [value("y", FLOAT, ["n", 3])],
    )
    check(
        model,
        *({"c": np.array(c), "x": ramp(n, 3)} for c in (True, False) for n in (1, 4)),
    )


def test_if_whose_sides_differ_in_size() -> None:
    model = model_of(
        [
            branches(
                [node("Concat", ["x", "x"], ["r"], axis=0)], [node("Identity", ["x"], ["r"])], "r"
            ),
            node("Relu", ["r_"], ["y"]),
        ],
        [value("c", BOOL, []), value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["m"])],
    )
    check(model, *({"c": np.array(c), "x": ramp(5)} for c in (True, False)))


def test_results_of_an_if_that_are_equally_large_either_way() -> None:
    """Two results of an If have equal sizes in either branch, so that they can be multiplied."""
    branch_parts = (
        [node("Concat", [n, n], [f"{n}.r"], axis=0) for n in "xy"],
        [node("Neg", [n], [f"{n}.r"]) for n in "xy"],
    )
    model = model_of(
        [branches(*branch_parts, "x.r", "y.r"), node("Mul", ["x.r_", "y.r_"], ["p"])],
        [value("c", BOOL, []), value("x", FLOAT, ["n", 3]), value("y", FLOAT, ["n", 3])],
        [value("p", FLOAT, ["m", 3])],
    )
    check(model, *({"c": np.array(c), "x": ramp(5, 3), "y": ramp(5, 3)} for c in (True, False)))


def test_if_that_returns_outer_values_and_constants() -> None:
    constant = node("Constant", [], ["k"], value_floats=[1.0, 2.0])
    model = model_of(
        [branches([constant], [node("Identity", ["x"], ["k"])], "k")],
        [value("c", BOOL, []), value("x", FLOAT, [2])],
        [value("k_", FLOAT, [2])],
    )
    check(model, *({"c": np.array(c), "x": ramp(2)} for c in (True, False)))


def test_if_inside_if() -> None:
    inner = node(
        "If",
        ["d"],
        ["r"],
        then_branch=body([node("Abs", ["x"], ["s"])], [], [value("s", FLOAT, None)]),
        else_branch=body([node("Neg", ["x"], ["s"])], [], [value("s", FLOAT, None)]),
    )
    model = model_of(
        [branches([inner], [node("Exp", ["x"], ["r"])], "r")],
        [value("c", BOOL, []), value("d", BOOL, []), value("x", FLOAT, [3])],
        [value("r_", FLOAT, [3])],
    )
    conditions = [(c, d) for c in (True, False) for d in (True, False)]
    check(model, *({"c": np.array(c), "d": np.array(d), "x": ramp(3)} for c, d in conditions))


# ---- Loop ----------------------------------------------------------------------------------------


def loop(
    nodes: Sequence[Any],
    inputs: Sequence[str],
    carried: Sequence[str],
    rows: Mapping[str, Sequence[int | str]] | None = None,
    stop: str = "go",
) -> onnx.NodeProto:
    """Returns a Loop whose body sees `i`, `go` and each carried `<name>`, and gives `stop`, each
    `<name>.next`, and rows."""
    return node(
        "Loop",
        list(inputs),
        [*(f"{name}.last" for name in carried), *(f"{name}.all" for name in rows or {})],
        body=body(
            nodes,
            [value("i", INT64, []), value("go", BOOL, [])]
            + [value(name, FLOAT, None) for name in carried],
            [value(stop, BOOL, [])]
            + [value(f"{name}.next", FLOAT, None) for name in carried]
            + [value(name, FLOAT, shape) for name, shape in (rows or {}).items()],
        ),
    )


@pytest.mark.parametrize("static", [True, False])
def test_loop_with_trip_count_carried_value_and_rows(static: bool) -> None:
    n = 3 if static else "n"
    model = model_of(
        [
            loop(
                [
                    node("Identity", ["go"], ["stay"]),
                    node("Cast", ["i"], ["f"], to=FLOAT),
                    node("Mul", ["a", "w"], ["scaled"]),
                    node("Add", ["scaled", "f"], ["a.next"]),
                    node("Relu", ["a.next"], ["row"]),
                ],
                ["trips", "", "x"],
                ["a"],
                {"row": [n]},
                "stay",
            )
        ],
        [value("trips", INT64, []), value("x", FLOAT, [n]), value("w", FLOAT, [n])],
        [value("a.last", FLOAT, [n]), value("row.all", FLOAT, ["t", n])],
    )
    # For rows of a symbolic size, ONNX Runtime does not give the size 0.
    counts = (0, 1, 2, 7) if static else (1, 2, 7)
    feeds = [{"trips": np.array(n), "x": ramp(3), "w": ramp(3) * 0.5} for n in counts]
    check(model, *feeds)


def test_loop_that_its_condition_ends() -> None:
    model = model_of(
        [
            loop(
                [
                    node("Add", ["a", "x"], ["a.next"]),
                    node("ReduceSum", ["a.next"], ["sum"], keepdims=0),
                    node("Less", ["sum", "limit"], ["less"]),
                    node("Identity", ["a.next"], ["row"]),
                ],
                ["", "start", "x"],
                ["a"],
                {"row": [2]},
                "less",
            )
        ],
        [value("start", BOOL, []), value("x", FLOAT, [2]), value("limit", FLOAT, [])],
        [value("a.last", FLOAT, [2]), value("row.all", FLOAT, ["t", 2])],
    )
    x = np.array([1, 0.5], np.float32)
    check(
        model,
        *(
            {"start": np.array(start), "x": x, "limit": np.array(limit, np.float32)}
            for start, limit in ((True, 10), (True, 0), (False, 10))
        ),
    )


def test_a_body_reads_places_and_weights_of_resampling_from_tables() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
    resampled (float[1,2,12,12] x) => (float[1,2,12,12] y) <float[4] scales = {1, 1, 2, 2}> {
      k = Constant <value = int64 {3}> ()
      go = Constant <value = bool {1}> ()
      y = Loop (k, go, x) <body = step (int64 i, bool c, float[1,2,12,12] a)
        => (bool d, float[1,2,12,12] b) {
          d = Identity (c)
          large = Resize <mode = "linear"> (a, , scales)
          b = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (large)
        }>
    }""")
    module = check(model, {"x": ramp(1, 2, 12, 12)})
    # Without tables the weights would be a few numbers in 128 bytes.
    assert module.manifest["variants"][0]["weights"]["bytes"] > 512


def test_loop_that_swaps_its_values() -> None:
    model = model_of(
        [
            loop(
                [
                    node("Identity", ["go"], ["stay"]),
                    node("Identity", ["b"], ["a.next"]),
                    node("Add", ["a", "b"], ["b.next"]),
                ],
                ["trips", "", "x", "y"],
                ["a", "b"],
                stop="stay",
            )
        ],
        [value("trips", INT64, []), value("x", FLOAT, [2]), value("y", FLOAT, [2])],
        [value("a.last", FLOAT, [2]), value("b.last", FLOAT, [2])],
    )
    check(model, *({"trips": np.array(n), "x": ramp(2), "y": ramp(2) + 3} for n in (0, 1, 2, 9)))


def test_loop_inside_loop_with_if() -> None:
    inner = loop(
        [
            node("Identity", ["go"], ["stay"]),
            node("Add", ["b", "a"], ["b.next"]),
        ],
        ["inner", "", "a"],
        ["b"],
        stop="stay",
    )
    choose = node(
        "If",
        ["odd"],
        ["a.next"],
        then_branch=body([node("Neg", ["b.last"], ["t"])], [], [value("t", FLOAT, None)]),
        else_branch=body([node("Identity", ["b.last"], ["e"])], [], [value("e", FLOAT, None)]),
    )
    outer = loop(
        [
            node("Identity", ["go"], ["stay2"]),
            inner,
            node("Mod", ["i", "two"], ["rest"]),
            node("Equal", ["rest", "one"], ["odd"]),
            choose,
        ],
        ["trips", "", "x"],
        ["a"],
        stop="stay2",
    )
    model = model_of(
        [outer],
        [value("trips", INT64, []), value("inner", INT64, []), value("x", FLOAT, [2])],
        [value("a.last", FLOAT, [2])],
        {"two": np.array(2), "one": np.array(1)},
    )
    sizes = [(0, 3), (1, 0), (3, 2)]
    check(
        model,
        *({"trips": np.array(n), "inner": np.array(m), "x": ramp(2)} for n, m in sizes),
    )


def test_loop_whose_carried_value_grows() -> None:
    model = model_of(
        [
            loop(
                [
                    node("Identity", ["go"], ["stay"]),
                    node("Concat", ["a", "x"], ["a.next"], axis=0),
                ],
                ["trips", "", "x"],
                ["a"],
                stop="stay",
            )
        ],
        [value("trips", INT64, []), value("x", FLOAT, [2])],
        [value("a.last", FLOAT, ["m"])],
    )
    check(model, *({"trips": np.array(n), "x": ramp(2)} for n in (0, 1, 4)))


def test_loop_whose_first_trip_changes_ranks_and_whose_condition_has_an_axis() -> None:
    """One model has two loops: PaddlePaddle's `while`, and a loop in which a row becomes a
    matrix."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (int64[1] j, int64 trips, float[n] x, float s) =>
        (int64[1] last, float[1, n] y, float[r, 1, n] rows, float z)
    <int64[1] one = {1}, int64[1] end = {4}, int64[2] row = {1, -1}, float[1] half = {0.5}> {
      begins = Less (j, end)
      last, sum = Loop ("", begins, j, s) <
        body = b (int64 i, bool[1] k, int64[1] a, float[] t) => (bool[1] go, int64[1] c, float[] u)
        { c = Add (a, one)  go = Less (c, end)  u = Add (t, half) }
      >
      y, rows = Loop (trips, "", x) <
        body = d (int64 i2, bool k2, float[] v) => (bool go2, float[] w, float[] r2)
        { go2 = Identity (k2)  m = Reshape (v, row)  f = Cast <to = 1> (i2)  w = Add (m, m)
          r2 = Add (w, f) }
      >
      z = ReduceSum <keepdims = 0> (sum)
    }""")
    common = {"x": ramp(3), "s": np.array(2, np.float32)}
    module = check(
        model,
        *(
            {"j": np.array([j]), "trips": np.array(trips), **common}
            for j, trips in ((1, 1), (3, 2), (9, 5))
        ),
    )
    with pytest.raises(tcc.TccError, match="a loop that ends before trip 1 leaves"):
        module.run({"j": np.array([1]), "trips": np.array(0), **common})


def test_decoding_with_a_cache_of_keys_and_values() -> None:
    """Keys and values grow by one row per trip, each token chooses the next token, and one token
    ends the loop."""
    rng = np.random.default_rng(2)
    weights = {n: rng.standard_normal((8, 8)).astype(np.float32) for n in ("q", "k", "v", "o")}
    step = [
        node("Gather", ["table", "t"], ["e"]),
        *(node("MatMul", ["e", f"w.{n}"], [n]) for n in "qkv"),
        node("Concat", ["keys", "k"], ["keys.next"], axis=0),
        node("Concat", ["values", "v"], ["values.next"], axis=0),
        node("Transpose", ["keys.next"], ["turned"], perm=[1, 0]),
        node("MatMul", ["q", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "values.next"], ["mix"]),
        node("Add", ["mix", "e"], ["sum"]),
        node("MatMul", ["sum", "w.o"], ["logits"]),
        node("ArgMax", ["logits"], ["t.next"], axis=1, keepdims=0),
        node("Equal", ["t.next", "end"], ["ends"]),
        node("Squeeze", ["ends"], ["ended"]),
        node("Not", ["ended"], ["stay"]),
        node("Identity", ["t.next"], ["token"]),
        node("Identity", ["logits"], ["row"]),
    ]
    decode = loop(
        step, ["trips", "", "keys0", "values0", "first"], ["keys", "values", "t"], stop="stay",
        rows={"token": [1], "row": [1, 8]},
    )  # fmt: skip
    decode.attribute[0].g.input[4].type.tensor_type.elem_type = INT64
    decode.attribute[0].g.output[3].type.tensor_type.elem_type = INT64
    decode.attribute[0].g.output[4].type.tensor_type.elem_type = INT64
    caches = [value(f"{n}0", FLOAT, ["p", 8]) for n in ("keys", "values")]
    model = model_of(
        [decode, node("Add", ["keys.last", "values.last"], ["both"])],
        [value("trips", INT64, []), *caches, value("first", INT64, [1])],
        [
            value("both", FLOAT, ["all", 8]),
            value("t.last", INT64, [1]),
            value("token.all", INT64, ["n", 1]),
            value("row.all", FLOAT, ["n", 1, 8]),
        ],
        {
            "table": rng.standard_normal((8, 8)).astype(np.float32),
            "end": np.array([5]),
            **{f"w.{n}": array for n, array in weights.items()},
        },
    )
    runs = [
        {"trips": np.array(n), "keys0": ramp(p, 8), "values0": -ramp(p, 8), "first": np.array([t])}
        for n, p, t in ((1, 0, 1), (9, 3, 2), (20, 1, 3), (3, 2, 4))
    ]
    module = check(model, *runs)
    assert len({len(module.run(inputs)["token.all"]) for inputs in runs}) > 2


def test_loop_whose_values_begin_equally_large_and_grow_apart() -> None:
    grown = [
        node("Identity", ["go"], ["stay"]),
        node("Concat", ["a", "x"], ["a.next"], axis=0),
        node("Concat", ["b", "x", "x"], ["b.next"], axis=0),
        node("Concat", ["c", "b"], ["c.next"], axis=0),
        node("Concat", ["d", "x"], ["d.next"], axis=0),
        node("Sub", ["a", "d"], ["e"]),
        node("ReduceSum", ["e"], ["row"], keepdims=0),
    ]
    model = model_of(
        [loop(grown, ["trips", "", *"xxxx"], "abcd", {"row": []}, stop="stay")],
        [value("trips", INT64, []), value("x", FLOAT, ["n"])],
        [value(f"{n}.last", FLOAT, [n]) for n in "abcd"] + [value("row.all", FLOAT, ["t"])],
    )
    check(model, *({"trips": np.array(n), "x": ramp(k)} for n, k in ((0, 2), (1, 3), (4, 2))))


# ---- Scan ----------------------------------------------------------------------------------------


def cell(**attributes: Any) -> onnx.NodeProto:
    """Returns a Scan of h' = tanh(h W + x_t), whose rows are h'."""
    return node(
        "Scan",
        ["h0", "x"],
        ["h", "y"],
        num_scan_inputs=1,
        body=body(
            [
                node("MatMul", ["s", "w"], ["m"]),
                node("Add", ["m", "r"], ["z"]),
                node("Tanh", ["z"], ["s.next"]),
                node("Identity", ["s.next"], ["row"]),
            ],
            [value("s", FLOAT, None), value("r", FLOAT, None)],
            [value("s.next", FLOAT, None), value("row", FLOAT, None)],
        ),
        **attributes,
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
        {"scan_input_axes": [1], "scan_output_axes": [1]},
    ],
    ids=["forward", "backward", "axis"],
)
def test_scan(attributes: dict[str, Any]) -> None:
    axis = attributes.get("scan_input_axes", [0])[0]
    shape = ["t", "b", 4] if axis == 0 else ["b", "t", 4]
    model = model_of(
        [cell(**attributes)],
        [value("h0", FLOAT, ["b", 4]), value("x", FLOAT, shape)],
        [value("h", FLOAT, ["b", 4]), value("y", FLOAT, shape)],
        {"w": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)},
    )
    feeds = []
    for t, b in ((1, 1), (5, 2), (3, 3)):
        sizes = (t, b, 4) if axis == 0 else (b, t, 4)
        feeds.append({"h0": ramp(b, 4), "x": ramp(*sizes)})
    check(model, *feeds)


def test_scan_of_two_inputs_with_a_captured_value() -> None:
    scan = node(
        "Scan",
        ["zero", "x", "x2"],
        ["sum", "y"],
        num_scan_inputs=2,
        body=body(
            [
                node("Mul", ["a", "b"], ["p"]),
                node("Mul", ["p", "k"], ["q"]),
                node("Add", ["s", "q"], ["s.next"]),
                node("Sub", ["a", "s.next"], ["row"]),
            ],
            [value("s", FLOAT, []), value("a", FLOAT, []), value("b", FLOAT, [])],
            [value("s.next", FLOAT, []), value("row", FLOAT, [])],
        ),
    )
    model = model_of(
        [scan],
        [value("x", FLOAT, ["t"]), value("x2", FLOAT, ["t"]), value("k", FLOAT, [])],
        [value("sum", FLOAT, []), value("y", FLOAT, ["t"])],
        {"zero": np.array(0, np.float32)},
    )
    k = np.array(0.5, np.float32)
    check(model, *({"x": ramp(n), "x2": ramp(n) + 1, "k": k} for n in (1, 2, 33)))


def test_a_scan_whose_states_are_rows_too_and_change_places() -> None:
    """For odd and even trip counts, `s` is new in each trip and also a row twice, while `a` and `b`
    swap."""
    step = body(
        [node("Add", ["s", "x_t"], ["s_"]), node("Tanh", ["s_"], ["s2"])],
        [value(name, FLOAT, [3]) for name in ("s", "a", "b", "x_t")],
        [value(name, FLOAT, [3]) for name in ("s2", "a2", "b2", "s2_", "row")],
    )
    renamed = {"a2": "b", "b2": "a", "s2_": "s2"}
    step.node.extend(node("Identity", [old], [new]) for new, old in renamed.items())
    step.node.append(node("Add", ["s2", "a"], ["row"]))
    scan = node(
        "Scan",
        ["s0", "a0", "b0", "x"],
        ["s", "a", "b", "rows", "sums"],
        body=step,
        num_scan_inputs=1,
        scan_output_directions=[1, 0],
    )
    model = model_of(
        [scan],
        [*(value(name, FLOAT, [3]) for name in ("s0", "a0", "b0")), value("x", FLOAT, ["n", 3])],
        [
            *(value(name, FLOAT, [3]) for name in ("s", "a", "b")),
            *(value(name, FLOAT, ["n", 3]) for name in ("rows", "sums")),
        ],
    )
    starts = {"s0": ramp(3), "a0": ramp(3) + 1, "b0": ramp(3) - 2}
    check(model, *({**starts, "x": ramp(n, 3)} for n in (1, 2, 5)))


# ---- results whose size alone is read ------------------------------------------------------------


def test_only_the_size_of_a_result_is_read() -> None:
    """The result comes from a body, which runs although nobody reads its elements."""
    longer = body(
        [node("Identity", ["go"], ["on"]), node("Concat", ["old", "w"], ["new"], axis=0)],
        [value("t", INT64, []), value("go", BOOL, []), value("old", FLOAT, [None])],
        [value("on", BOOL, []), value("new", FLOAT, [None])],
    )
    either = branches(
        [node("Concat", ["x", "w"], ["r"], axis=0)], [node("Identity", ["w"], ["r"])], "r"
    )
    model = model_of(
        [
            node("Loop", ["k", "", "x"], ["grown"], body=longer),
            either,
            node("Shape", ["grown"], ["y"]),
            node("Shape", ["r_"], ["z"]),
        ],
        [value("x", FLOAT, ["n"]), value("w", FLOAT, ["m"]), value("k", INT64, []),
         value("c", BOOL, [])],
        [value("y", INT64, [1]), value("z", INT64, [1])],
    )  # fmt: skip
    for trips, test in ((0, True), (2, False)):
        feeds = {"x": ramp(2), "w": ramp(3), "k": np.array(trips), "c": np.array(test)}
        check(model, feeds)
