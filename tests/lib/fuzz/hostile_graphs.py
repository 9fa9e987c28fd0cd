"""Hostile graphs, attributes, sizes and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .hostile_case import (
    Action,
    Case,
    Outcome,
    changed,
    model_of,
    plain,
    refused,
    text_model,
    writer,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def cases() -> Iterator[Case]:
    yield from _graphs()
    yield from _functions()
    yield from _attributes()
    yield from _bombs()
    yield from _names()


# ---- graphs --------------------------------------------------------------------------------------


def _graphs() -> Iterator[Case]:
    changes: dict[str, Callable[[onnx.ModelProto], object]] = {
        "cycle": lambda m: m.graph.node[0].input.__setitem__(0, "y"),
        "itself": lambda m: m.graph.node[1].input.__setitem__(0, "y"),
        "undefined": lambda m: m.graph.node[0].input.__setitem__(0, "gone"),
        "missing": lambda m: m.graph.node[0].input.__setitem__(0, ""),
        "defined-twice": lambda m: m.graph.node[1].output.__setitem__(0, "t"),
        "defines-input": lambda m: m.graph.node[0].output.__setitem__(0, "x"),
        "defines-weight": lambda m: m.graph.node[0].output.__setitem__(0, "w"),
        "no-op": lambda m: m.graph.node[0].ClearField("op_type"),
        "unknown-op": lambda m: setattr(m.graph.node[0], "op_type", "Nonsense"),
        "unknown-domain": lambda m: setattr(m.graph.node[0], "domain", "evil.corp"),
        "op-path": lambda m: setattr(m.graph.node[0], "op_type", "../../bin/sh"),
        "output-gone": lambda m: setattr(m.graph.output[0], "name", "gone"),
        "output-empty": lambda m: setattr(m.graph.output[0], "name", ""),
        "no-outputs": lambda m: m.graph.ClearField("output"),
        "outputs-twice": lambda m: m.graph.output.append(m.graph.output[0]),
        "inputs-twice": lambda m: m.graph.input.append(m.graph.input[0]),
        "input-empty": lambda m: setattr(m.graph.input[0], "name", ""),
        "input-untyped": lambda m: m.graph.input[0].ClearField("type"),
        "input-huge": lambda m: _dim(m, (1 << 63) - 1),
        "input-long": lambda m: _dim(m, 1 << 40),
        "input-rank": lambda m: [
            m.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1) for _ in range(5000)
        ],
        "opset-none": lambda m: m.ClearField("opset_import"),
        "opset-zero": lambda m: setattr(m.opset_import[0], "version", 0),
        "opset-negative": lambda m: setattr(m.opset_import[0], "version", -1),
        "opset-9999": lambda m: setattr(m.opset_import[0], "version", 9999),
        "opset-two": lambda m: m.opset_import.add(domain="", version=7),
        "ir-zero": lambda m: setattr(m, "ir_version", 0),
        "ir-999": lambda m: setattr(m, "ir_version", 999),
        "too-many-inputs": lambda m: m.graph.node[0].input.extend(["x"] * 100),
        "too-many-outputs": lambda m: m.graph.node[0].output.extend([f"o{n}" for n in range(99)]),
        "wrong-type": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", INT64),
        "sequence-input": lambda m: m.graph.input[0].type.sequence_type.elem_type.tensor_type.
        __setattr__("elem_type", 1),
    }  # fmt: skip
    for name, change in changes.items():
        yield refused(f"graph-{name}", changed(change))
    yield refused("graph-no-nodes", changed(lambda m: m.graph.ClearField("node")))
    for name, size in (
        ("negative", -2),
        ("least", -(1 << 63)),
    ):  # Paddle writes symbolic sizes as negative numbers.
        open_size = partial(_dim, value=size)
        yield Case(f"graph-input-{name}", Outcome.WORKS, writer(changed(open_size)))
    yield Case("graph-long-chain", Outcome.WORKS, writer(_chain(3000)))
    yield Case("graph-wide", Outcome.WORKS, writer(_wide(60)))
    yield Case("graph-body-deep", Outcome.WORKS, writer(_bodies(24)))
    yield Case("graph-body-some", Outcome.WORKS, writer(_bodies(8)))
    yield refused(
        "graph-body-undefined",
        text_model(
            "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] p)"
            " { p = Neg (hidden) }, else_branch = e () => (float[2] q) { q = Neg (x) }> }"
        ),
    )
    yield refused(
        "graph-body-leaks",
        text_model(
            "g (bool c, float[2] x) => (float[2] z) { y = If (c) <then_branch = t () => (float[2] p)"
            " { p = Neg (x) }, else_branch = e () => (float[2] q) { q = Neg (x) }> z = Neg (p) }"
        ),
    )
    yield refused(
        "graph-body-types",
        text_model(
            "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] p)"
            " { p = Neg (x) }, else_branch = e () => (int64[2] q) { q = Cast <to = 7> (x) }> }"
        ),
    )


def _dim(model: onnx.ModelProto, value: int) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = value


def _chain(count: int) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        names = ["x", *(f"v{n}" for n in range(count - 1)), "y"]
        nodes = [node("Neg", [a], [b]) for a, b in pairwise(names)]
        return model_of(nodes, [("x", FLOAT, [2])], [("y", FLOAT, [2])])

    return make


def _wide(count: int) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        nodes = [node("Neg", ["x"], [f"v{n}"]) for n in range(count)]
        nodes.append(node("Concat", [f"v{n}" for n in range(count)], ["y"], axis=0))
        return model_of(nodes, [("x", FLOAT, [2])], [("y", FLOAT, [2 * count])])

    return make


def _bodies(depth: int) -> Callable[[], onnx.ModelProto]:
    """Returns a model with nested Ifs."""

    def make() -> onnx.ModelProto:
        inner: list[onnx.NodeProto] = [node("Neg", ["x"], ["r0"])]
        for level in range(depth):
            result = helper.make_tensor_value_info(f"r{level}", FLOAT, [2])
            side = helper.make_graph(inner, "side", [], [result])
            other = helper.make_graph(
                [node("Abs", ["x"], [f"o{level}"])],
                "other",
                [],
                [helper.make_tensor_value_info(f"o{level}", FLOAT, [2])],
            )
            inner = [node("If", ["c"], [f"r{level + 1}"], then_branch=side, else_branch=other)]
        return model_of(
            inner, [("c", TensorProto.BOOL, []), ("x", FLOAT, [2])], [(f"r{depth}", FLOAT, [2])]
        )

    return make


# ---- functions -----------------------------------------------------------------------------------

_HEAD = '<domain: "local", opset_import: ["" : 21, "local" : 1]>\n'
_CALL = "g (float[2] x) => (float[2] y) { y = local.f0 (x) }"


def _functions() -> Iterator[Case]:
    bodies = {
        "recursive": "f0 (a) => (b) { b = local.f0 (a) }",
        "undefined": "f0 (a) => (b) { b = Neg (c) }",
        "no-output": "f0 (a) => (b) { c = Neg (a) }",
        "absent": "f1 (a) => (b) { b = Neg (a) }",
        "attribute-gone": "f0 (a) => (b) { b = Softmax <axis = @gone> (a)  c = local.f9 (b) }",
    }
    for name, body in bodies.items():
        yield refused(f"function-{name}", text_model(_CALL, functions=_HEAD + body))
    two = (
        _HEAD
        + "f0 (a) => (b) { b = local.f1 (a) }\n"
        + _HEAD
        + "f1 (a) => (b) { b = local.f0 (a) }"
    )
    yield refused("function-mutual", text_model(_CALL, functions=two))
    function = _HEAD + "f0 (a) => (b) { b = Neg (a) }\n"
    yield refused("function-twice", text_model(_CALL, functions=function * 2))
    chains = {"function-deep": (120, 1), "function-bomb": (40, 2), "function-bomb-wide": (7, 10)}
    for name, (depth, width) in chains.items():
        yield refused(name, _calls(depth, width))
    yield Case("function-some", Outcome.WORKS, writer(_calls(5, 2)))
    yield refused("function-in-body", _call_in_body)


def _calls(depth: int, width: int) -> Callable[[], onnx.ModelProto]:
    """Returns functions that each call the next `width` times, so `width ** depth` nodes."""

    def make() -> onnx.ModelProto:
        model = text_model(_CALL)
        for level in range(depth):
            names = ["a", *(f"t{n}" for n in range(width - 1)), "b"]
            last = level == depth - 1
            nodes = [
                node("Neg", [p], [q]) if last else node(f"f{level + 1}", [p], [q], domain="local")
                for p, q in pairwise(names)
            ]
            opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
            model.functions.append(
                helper.make_function("local", f"f{level}", ["a"], ["b"], nodes, opsets)
            )
        return model

    return make


def _call_in_body() -> onnx.ModelProto:
    """Returns a function that calls itself in the body of an If."""
    side = helper.make_graph(
        [node("f0", ["a"], ["p"], domain="local")],
        "t",
        [],
        [helper.make_tensor_value_info("p", FLOAT, [2])],
    )
    flag = node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    inner = node("If", ["c"], ["b"], then_branch=side, else_branch=side)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    model = text_model(_CALL)
    model.functions.append(helper.make_function("local", "f0", ["a"], ["b"], [flag, inner], opsets))
    return model


# ---- attributes ----------------------------------------------------------------------------------


def _attributes() -> Iterator[Case]:
    image = "g (float[1,4,8,8] x, float[4,4,3,3] w) => (float[a,b,c,d] y)"
    matrix = "g (float[4,6] x) => (float[a,b] y)"
    bodies = {
        "conv-stride-0": (image, "y = Conv <strides = [0, 1]> (x, w)"),
        "conv-stride-negative": (image, "y = Conv <strides = [-1, 1]> (x, w)"),
        "conv-dilation-0": (image, "y = Conv <dilations = [0, 1]> (x, w)"),
        "conv-group-0": (image, "y = Conv <group = 0> (x, w)"),
        "conv-group-3": (image, "y = Conv <group = 3> (x, w)"),
        "conv-group-negative": (image, "y = Conv <group = -1> (x, w)"),
        "conv-pads-few": (image, "y = Conv <pads = [1, 1]> (x, w)"),
        "conv-kernel-lies": (image, "y = Conv <kernel_shape = [5, 5]> (x, w)"),
        "conv-pads-negative": (image, "y = Conv <pads = [-9, 0, 0, 0]> (x, w)"),
        "conv-auto-pad": (image, 'y = Conv <auto_pad = "SIDEWAYS"> (x, w)'),
        "conv-dilation-huge": (image, "y = Conv <dilations = [4611686018427387904, 1]> (x, w)"),
        "pool-kernel-0": (image, "y = MaxPool <kernel_shape = [0, 1]> (x)"),
        "pool-kernel-none": (image, "y = MaxPool (x)"),
        "pool-kernel-large": (image, "y = MaxPool <kernel_shape = [99, 99]> (x)"),
        "pool-stride-0": (image, "y = AveragePool <kernel_shape = [2, 2], strides = [0, 0]> (x)"),
        "transpose-twice": (matrix, "y = Transpose <perm = [0, 0]> (x)"),
        "transpose-outside": (matrix, "y = Transpose <perm = [0, 2]> (x)"),
        "transpose-short": (matrix, "y = Transpose <perm = [0]> (x)"),
        "softmax-axis": (matrix, "y = Softmax <axis = 2> (x)"),
        "softmax-axis-least": (matrix, "y = Softmax <axis = -9223372036854775808> (x)"),
        "concat-axis": (matrix, "y = Concat <axis = 9> (x, x)"),
        "flatten-axis": (matrix, "y = Flatten <axis = 5> (x)"),
        "gather-axis": (matrix, "i = Constant <value = int64[1] {0}> () y = Gather <axis = 7> (x, i)"),
        "gather-constant": (matrix, "i = Constant <value = int64[1] {9}> () y = Gather (x, i)"),
        "gather-constant-below": (matrix, "i = Constant <value = int64[1] {-5}> () y = Gather (x, i)"),
        "topk-large": (matrix, "k = Constant <value = int64[1] {99}> () y, z = TopK (x, k)"),
        "topk-negative": (matrix, "k = Constant <value = int64[1] {-1}> () y, z = TopK (x, k)"),
        "split-sum": (matrix, "s = Constant <value = int64[2] {1, 9}> () y, z = Split (x, s)"),
        "split-negative": (matrix, "s = Constant <value = int64[2] {-1, 5}> () y, z = Split (x, s)"),
        "reshape-minus-two": (matrix, "s = Constant <value = int64[2] {-2, 3}> () y = Reshape (x, s)"),
        "reshape-two-open": (matrix, "s = Constant <value = int64[2] {-1, -1}> () y = Reshape (x, s)"),
        "reshape-count": (matrix, "s = Constant <value = int64[2] {5, 5}> () y = Reshape (x, s)"),
        "expand-not": (matrix, "s = Constant <value = int64[2] {5, 6}> () y = Expand (x, s)"),
        "tile-negative": (matrix, "s = Constant <value = int64[2] {-1, 1}> () y = Tile (x, s)"),
        "tile-short": (matrix, "s = Constant <value = int64[1] {2}> () y = Tile (x, s)"),
        "squeeze": (matrix, "s = Constant <value = int64[1] {0}> () y = Squeeze (x, s)"),
        "unsqueeze": (matrix, "s = Constant <value = int64[1] {99}> () y = Unsqueeze (x, s)"),
        "einsum-letters": (matrix, 'y = Einsum <equation = "i1,j2->"> (x, x)'),
        "einsum-count": (matrix, 'y = Einsum <equation = "ij,jk,kl->il"> (x, x)'),
        "einsum-long": (matrix, f'y = Einsum <equation = "{"i" * 3000}->"> (x)'),
        "cast-type": (matrix, "y = Cast <to = 999> (x)"),
        "cast-none": (matrix, "y = Cast (x)"),
        "lstm-hidden-0": (
            "g (float[4,1,6] x, float[1,8,6] w, float[1,8,2] r) => (float[a,b,c,d] y)",
            "y = LSTM <hidden_size = 0> (x, w, r)",
        ),
        "lstm-direction": (
            "g (float[4,1,6] x, float[1,8,6] w, float[1,8,2] r) => (float[a,b,c,d] y)",
            'y = LSTM <hidden_size = 2, direction = "up"> (x, w, r)',
        ),
        "slice-step-0": (
            matrix,
            "a = Constant <value = int64[1] {0}> () b = Constant <value = int64[1] {9}> () "
            "s = Constant <value = int64[1] {0}> () y = Slice (x, a, b, a, s)",
        ),
        "resize-zero": (
            image,
            "e = Constant <value = float[0] {}> () "
            "s = Constant <value = float[4] {1.0, 1.0, 0.0, 1.0}> () y = Resize (x, e, s)",
        ),
        "resize-negative": (
            image,
            "e = Constant <value = float[0] {}> () "
            "s = Constant <value = float[4] {1.0, 1.0, -2.0, 1.0}> () y = Resize (x, e, s)",
        ),
        "resize-mode": (
            image,
            "e = Constant <value = float[0] {}> () "
            's = Constant <value = float[4] {1.0, 1.0, 2.0, 1.0}> () y = Resize <mode = "x"> (x, e, s)',
        ),
        "depth-to-space-0": (image, "y = DepthToSpace <blocksize = 0> (x)"),
        "depth-to-space-3": (image, "y = DepthToSpace <blocksize = 3> (x)"),
        "matmulnbits-lies": (
            "g (float[2,64] x, uint8[8,2,16] b, float[16] s) => (float[a,b] y)",
            "y = com.microsoft.MatMulNBits <K = 4096, N = 4096, bits = 4, block_size = 32> (x, b, s)",
        ),
        "matmulnbits-block-0": (
            "g (float[2,64] x, uint8[8,2,16] b, float[16] s) => (float[a,b] y)",
            "y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 0> (x, b, s)",
        ),
        "norm-groups-0": (
            "g (float[1,4,8,8] x, float[4] s) => (float[a,b,c,d] y)",
            "y = GroupNormalization <num_groups = 0> (x, s, s)",
        ),
        "one-hot-rank": (matrix, "y = OneHot (x, x, x)"),
        "matmul-shapes": (matrix, "y = MatMul (x, x)"),
        "trilu-scalar": ("g (float x) => (float y)", "y = Trilu (x)"),
    }  # fmt: skip
    works = {"conv-pads-negative"}
    for name, (head, body) in bodies.items():
        outcome = Outcome.EITHER if name in works else Outcome.REFUSED
        make: Any = lambda head=head, body=body: text_model(f"{head} {{ {body} }}")  # noqa: E731
        yield Case(f"attribute-{name}", outcome, writer(make))
    attribute = helper.make_attribute
    changes: dict[str, Callable[[onnx.ModelProto], object]] = {
        "unknown": lambda m: m.graph.node[0].attribute.append(attribute("evil", 1)),
        "twice": lambda m: m.graph.node[0].attribute.extend([attribute("a", 1), attribute("a", 2)]),
        "nameless": lambda m: m.graph.node[0].attribute.append(attribute("", 1)),
        "reference": lambda m: m.graph.node[0].attribute.add(
            name="axis", ref_attr_name="gone", type=onnx.AttributeProto.INT
        ),
    }
    for name, change in changes.items():
        yield refused(f"attribute-{name}", changed(change))


# ---- bombs ---------------------------------------------------------------------------------------


def _bombs() -> Iterator[Case]:
    """Yields models that need too much memory or time.

    A run may refuse a large size instead, if nothing allocates it at compile time.
    """
    big = 1 << 40
    vector = "g (float[1] x) => (float[n] y)"
    square = "g (float[1,1] x) => (float[m,n] y)"
    bodies = {
        "expand": (vector, f"s = Constant <value = int64[1] {{{big}}}> () y = Expand (x, s)"),
        "expand-wraps": (
            square,
            f"s = Constant <value = int64[2] {{{1 << 62}, {1 << 62}}}> () y = Expand (x, s)",
        ),
        "tile": (vector, f"s = Constant <value = int64[1] {{{big}}}> () y = Tile (x, s)"),
        "pad": (
            vector,
            f"s = Constant <value = int64[2] {{{big}, {big}}}> () y = Pad (x, s)",
        ),
        "constant-of-shape": (
            vector,
            f"s = Constant <value = int64[1] {{{big}}}> () c = ConstantOfShape (s) y = Add (c, x)",
        ),
        "range": (
            "g (float[1] x) => (int64[n] y)",
            "a = Constant <value = int64 {0}> () b = Constant <value = int64 {4611686018427387904}> () "
            "c = Constant <value = int64 {1}> () y = Range (a, b, c)",
        ),
        "range-step-0": (
            "g (float[1] x) => (int64[n] y)",
            "a = Constant <value = int64 {0}> () b = Constant <value = int64 {9}> () "
            "y = Range (a, b, a)",
        ),
        "one-hot": (
            "g (int64[1] x) => (float[m,n] y)",
            f"d = Constant <value = int64 {{{big}}}> () v = Constant <value = float[2] {{0.0, 1.0}}> () "
            "y = OneHot (x, d, v)",
        ),
        "eye": (
            "g (float[1] x) => (float[m,n] y)",
            f"s = Constant <value = int64[2] {{{1 << 20}, {1 << 20}}}> () "
            "c = ConstantOfShape (s) y = EyeLike (c)",
        ),
        "upsample": (
            "g (float[1,1,2,2] x) => (float[a,b,c,d] y)",
            "e = Constant <value = float[0] {}> () "
            "s = Constant <value = float[4] {1.0, 1.0, 1e30, 1.0}> () y = Resize (x, e, s)",
        ),
        "resize-sizes": (
            "g (float[1,1,2,2] x) => (float[a,b,c,d] y)",
            f"e = Constant <value = float[0] {{}}> () "
            f"s = Constant <value = int64[4] {{1, 1, {big}, {big}}}> () y = Resize (x, e, e, s)",
        ),
        "fold": (
            vector,
            "s = Constant <value = int64[2] {30000, 30000}> () c = ConstantOfShape (s) "
            "d = MatMul (c, c) e = MatMul (d, c) r = ReduceSum <keepdims = 0> (e) y = Add (x, r)",
        ),
        "doubling": (vector, _doubling(60)),
        "window": (
            vector,
            f"s = Constant <value = int64 {{{big}}}> () h = HannWindow (s) y = Mul (x, h)",
        ),
        "dft": (
            "g (float[1,4,1] x) => (float[a,b,c] y)",
            f"s = Constant <value = int64 {{{big}}}> () y = DFT (x, s)",
        ),
        "pads": (
            "g (float[1,1,2,2] x, float[1,1,1,1] w) => (float[a,b,c,d] y)",
            f"y = Conv <pads = [{big}, {big}, {big}, {big}]> (x, w)",
        ),
    }  # fmt: skip
    for name, (head, body) in bodies.items():
        make: Any = lambda head=head, body=body: text_model(f"{head} {{ {body} }}")  # noqa: E731
        # A long computation is no error, so the model compiles in time but does not run.
        slow = name == "fold"
        outcome = Outcome.EITHER if slow else Outcome.REFUSED
        yield Case(f"bomb-{name}", outcome, writer(make), Action.COMPILE if slow else Action.RUN)
    yield Case("bomb-tiles", Outcome.EITHER, writer(_tiles), Action.COMPILE)
    yield Case("bomb-constant-gigabytes", Outcome.EITHER, writer(_gigabytes), Action.COMPILE)


def _doubling(times: int) -> str:
    """Returns nodes that repeatedly join a value with itself."""
    steps = [f"v{n + 1} = Concat <axis = 0> (v{n}, v{n})" for n in range(times)]
    return " ".join(["v0 = Neg (x)", *steps, f"y = Neg (v{times})"])


def _tiles() -> onnx.ModelProto:
    """Returns a model with a constant that quadruples repeatedly."""
    names = ["w", *(f"t{n}" for n in range(12))]
    nodes = [node("Tile", [a, "four"], [b]) for a, b in pairwise(names)]
    nodes.append(node("ReduceSum", [names[-1]], ["r"], keepdims=0))
    nodes.append(node("Add", ["x", "r"], ["y"]))
    weights = [
        numpy_helper.from_array(np.ones(1 << 16, np.float32), "w"),
        numpy_helper.from_array(np.array([4], np.int64), "four"),
    ]
    return model_of(nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])], weights)


def _gigabytes() -> onnx.ModelProto:
    """Returns a model whose small constants fold to large ones."""
    shape = numpy_helper.from_array(np.array([1 << 16, 1 << 13], np.int64))
    nodes: list[onnx.NodeProto] = [node("Constant", [], ["s"], value=shape)]
    for n in range(20):
        one = numpy_helper.from_array(np.array([float(n)], np.float32))
        nodes.append(node("ConstantOfShape", ["s"], [f"c{n}"], value=one))
        nodes.append(node("Exp", [f"c{n}"], [f"e{n}"]))
    nodes.append(node("Sum", [f"e{n}" for n in range(20)], ["t"]))
    nodes.append(node("ReduceSum", ["t"], ["r"], keepdims=0))
    nodes.append(node("Add", ["x", "r"], ["y"]))
    return model_of(nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])])


# ---- names ---------------------------------------------------------------------------------------

_NAMES = {
    "comment": '*/ system("touch pwned"); /*',
    "quote": '"; system("touch pwned"); char *s = "',
    "shell": "$(touch pwned)`touch pwned`;touch pwned|touch pwned&",
    "newline": 'x\n#include "/etc/passwd"\nint evil;',
    "carriage": "x\r\n.globl evil\r\n",
    "parent": "../../../pwned",
    "absolute": "/tmp/pwned",
    "percent": "%n%n%s%s%x%p",
    "backslash": "\\\\x41\\n\\",
    "braces": "{0.__class__}{x!r}${x}",
    "llvm": '"} define void @evil() { ret void } ; ',
    "assembly": "\n.section .init_array\n.quad evil\n",
    "control": "\x01\x02\x1b[31m\x7f",
    "right-to-left": "\u202egnp.exe",
    "emoji": "😀" * 50,
    "keyword": "int",
    "python": "__import__('os').system('touch pwned')",
    "long": "n" * 4000,
    "json": '","pwned":{"a":"',
    "space": "   ",
}


def _names() -> Iterator[Case]:
    for label, text in _NAMES.items():
        yield Case(f"name-{label}", Outcome.WORKS, writer(_named(text)), Action.RUN)
    yield refused("name-megabyte", changed(lambda m: _rename(m, "n" * (1 << 20))))
    bytes_of_no_text = plain().SerializeToString().replace(b"product", b"\xff\xfe\xfdduct")
    yield Case("name-not-utf8", Outcome.EITHER, writer(bytes_of_no_text))
    yield refused("name-nul", _named("a\0b"))


def _named(text: str) -> Callable[[], onnx.ModelProto]:
    return changed(lambda model: _rename(model, text))


def _rename(model: onnx.ModelProto, text: str) -> None:
    """Puts the text into each name of a model, and into a symbolic size."""
    model.graph.name = model.producer_name = model.domain = model.doc_string = text
    model.graph.doc_string = model.graph.node[0].doc_string = text
    model.metadata_props.add(key=text, value=text)
    model.graph.input[0].name = f"{text}in"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = text
    model.graph.output[0].name = f"{text}out"
    model.graph.initializer[0].name = f"{text}w"
    first, last = model.graph.node
    first.name, last.name = text, f"{text}2"
    first.input[:] = [f"{text}in", f"{text}w"]
    first.output[:] = [f"{text}t"]
    last.input[:] = [f"{text}t", f"{text}t"]
    last.output[:] = [f"{text}out"]
