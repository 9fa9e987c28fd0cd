"""A model that cannot be imported raises one error, which says where and why."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import tcc
from onnx import helper
from tcc.errors import UserError
from tcc.frontends import load_model

from tests.lib.import_oracle import model_of


def _refused(model: onnx.ModelProto) -> UserError:
    with pytest.raises(UserError) as error:
        load_model(model)
    return error.value


def test_all_unsupported_operators_are_named_at_once() -> None:
    model = model_of(
        """
    g (float[2] x, bool c) => (float[2] y) {
      a = Nonsense (x)
      [second] b = Nonsense (a)
      d = local.fancy (b)
      y = If (c) <
        then_branch = t () => (float[2] p) { p = Hidden (d) },
        else_branch = e () => (float[2] q) { q = Neg (d) }
      >
    }""",
        functions='<domain: "local", opset_import: ["" : 17, "elsewhere" : 2]>\n'
        "fancy (a) => (b) { b = elsewhere.Strange (a) }",
    )
    error = _refused(model)
    assert error.what == "3 operators of the model are not supported"
    lines = [line.split() for line in error.why.strip().splitlines()]
    assert lines[0] == ["operator", "opset", "count", "nodes", "reason"]
    assert lines[1][:3] == ["Nonsense", "ai.onnx:17", "2"]
    assert "second" in lines[1]
    assert {line[0] for line in lines[2:]} == {"Hidden", "Strange"}
    assert any("elsewhere:2" in line for line in lines)


def _broken(change: Callable[[onnx.GraphProto], object]) -> onnx.ModelProto:
    model = model_of(
        "g (float[2, 3] x) => (float[2, 3] y) "
        "{ [first] t = Softmax <axis = 1> (x)  [last] y = Add (t, x) }"
    )
    change(model.graph)
    return model


def _set_attribute(graph: onnx.GraphProto, value: object) -> None:
    del graph.node[0].attribute[:]
    graph.node[0].attribute.append(helper.make_attribute("axis", value))


def _cycle(graph: onnx.GraphProto) -> None:
    graph.node[0].input[0] = "y"


def _swap(graph: onnx.GraphProto) -> None:
    first, last = graph.node[0], graph.node[1]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in (last, first)]
    del graph.node[:]
    graph.node.extend(nodes)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        (_cycle, "first", "no input, initialiser or earlier node"),
        (_swap, "last", "no input, initialiser or earlier node"),
        (lambda g: g.node[1].input.__setitem__(0, "gone"), "last", "no input"),
        (lambda g: g.node[1].input.__setitem__(0, ""), "last", "input 0 is missing"),
        (lambda g: g.node[1].input.append("x"), "last", "3 inputs; 2 to 2"),
        (lambda g: g.node[1].input.pop(), "last", "1 inputs; 2 to 2"),
        (lambda g: g.node[0].output.append("z"), "first", "2 outputs; 1 to 1"),
        (lambda g: _set_attribute(g, 1.5), "first", "attribute axis is of kind float; INT"),
        (lambda g: _set_attribute(g, "one"), "first", "attribute axis is of kind string; INT"),
        (lambda g: _set_attribute(g, 2), "first", "axis 2 is outside a tensor of rank 2"),
        (lambda g: _set_attribute(g, -3), "first", "axis -3 is outside"),
        (
            lambda g: g.node[0].attribute.append(helper.make_attribute("slope", 1)),
            "first",
            "opset 17 has no attribute slope",
        ),
        (
            lambda g: g.node[0].attribute.append(helper.make_attribute("axis", 1)),
            "first",
            "an attribute is given twice",
        ),
        (
            lambda g: setattr(g.node[0].attribute[0], "ref_attr_name", "gone"),
            "first",
            "an attribute is that of a function",
        ),
    ],
)
def test_broken_nodes_are_named(
    change: Callable[[onnx.GraphProto], object], where: str, why: str
) -> None:
    error = _refused(_broken(change))
    assert error.where.startswith(where)
    assert why in error.why


def _untyped(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda g: g.node[1].output.__setitem__(0, "t"), "'t' is defined twice"),
        (lambda g: g.output[0].__setattr__("name", "z"), "nothing defines the output 'z'"),
        (lambda g: g.output.append(g.output[0]), "outputs are absent or not distinct"),
        (lambda g: g.input.append(g.input[0]), "'x' is defined twice"),
        (lambda g: g.output.pop(), "outputs are absent or not distinct"),
        (_untyped, "element type UNDEFINED is not supported"),
        (lambda g: g.input[0].ClearField("type"), "inputs of type unknown"),
        (lambda g: g.input[0].type.tensor_type.ClearField("shape"), "how many dimensions"),
    ],
)  # fmt: skip
def test_broken_graphs_are_explained(
    change: Callable[[onnx.GraphProto], object], what: str
) -> None:
    assert what in _refused(_broken(change)).what


@pytest.mark.parametrize(
    "body",
    [
        "{ s = Constant <value = int64[2] {4, 4}> ()  y = Reshape (x, s) }",
        "{ s = Constant <value = int64[2] {-1, -1}> ()  y = Reshape (x, s) }",
        "{ s = Constant <value = int64[3] {2, 3, 0}> ()  y = Reshape (x, s) }",
        "{ y = Transpose <perm = [0, 0]> (x) }",
        "{ a = Constant <value = int64[1] {0}> ()  u = Unsqueeze (x, a)"
        "  y = MaxPool <kernel_shape = [1], pads = [-1, 0]> (u) }",
        "{ y = Concat <axis = 0> (x, x, y) }",
        "{ a = Constant <value = int64[1] {0}> ()  y = Squeeze (x, a) }",
        "{ y = MaxPool <kernel_shape = [2]> (x) }",
        "{ y = Conv <strides = [0, 0]> (x, x) }",
        '{ y = Einsum <equation = "ij,jk"> (x) }',
        "{ s = Constant <value = int64[1] {9}> ()  y, i = TopK (x, s) }",
        "{ s = Constant <value = int64[2] {1, 2}> ()  y, i = TopK (x, s) }",
        "{ a = Constant <value = int64[2] {0, 1}> ()  y = CumSum (x, a) }",
        "{ d = Constant <value = int64[2] {3, 4}> ()  v = Constant <value = float[2] {0.0, 1.0}> ()"
        "  y = OneHot (x, d, v) }",
        "{ t = ArgMax <axis = 1, keepdims = 0> (x)"
        '  y = SoftmaxCrossEntropyLoss <reduction = "x"> (x, t) }',
        "{ v = Constant <value = float[2] {0.0, 1.0}> ()"
        "  y, a, b = BatchNormalization <training_mode = 1> (v, v, v, v, v) }",
        "{ s = Constant <value = int64[2] {1, 2}> ()  y, z = Split (x, s) }",
        "{ y = MatMul (x, x) }",
    ],
)
def test_values_an_operator_cannot_take(body: str) -> None:
    error = _refused(model_of(f"g (float[2, 3] x) => (float[a, b] y) {body}"))
    assert error.where
    assert error.why


def test_an_index_outside_of_constants_is_refused() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {1.0, 2.0}> ()"
        "  i = Constant <value = int64 {7}> ()  d = Gather (c, i)  y = Add (x, d) }"
    )
    with pytest.raises(UserError, match="outside of its axis"):
        tcc.compile(model)


def test_calls_and_bodies_nest_only_so_deep() -> None:
    header = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
    levels = [f"{header}\nf0 (a) => (b) {{ b = Neg (a) }}"]
    levels += [f"{header}\nf{n} (a) => (b) {{ b = local.f{n - 1} (a) }}" for n in range(1, 300)]
    text = "g (float x) => (float y) { y = local.f299 (x) }"
    assert "budget of 64 bodies" in _refused(model_of(text, functions="\n".join(levels))).what


# ---- input shapes given by the user --------------------------------------------------------------

_TWO = "g (float[n, 3] a, float[n, m] b) => (float[n, k] y) { y = Concat <axis = 1> (a, b) }"


def test_a_size_given_to_a_name_holds_everywhere() -> None:
    graph = load_model(model_of(_TWO), {"a": (4, 3)})
    assert [v.type.shape[0].key for v in graph.inputs] == ["4", "4"]
    graph = load_model(model_of(_TWO), {"b": ("batch", 7)})
    assert graph.inputs[1].type.shape[1].key == "7"


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({"z": (1,)}, "no input 'z'"),
        ({"a": (4,)}, "wrong rank"),
        ({"a": (4, 5)}, "contradicts the model"),
        ({"a": (-4, 3)}, "negative size"),
        ({"a": (4, 3), "b": (5, 2)}, "two sizes"),
    ],
)
def test_shapes_that_do_not_fit_the_model(shapes: dict[str, tuple[int, ...]], what: str) -> None:
    with pytest.raises(UserError) as error:
        load_model(model_of(_TWO), shapes)
    assert what in error.value.what


@pytest.mark.parametrize("shape", ["{0, 4611686018427387904, 4}", "{1099511627776, 1}"])
def test_tensors_that_no_machine_can_have(shape: str) -> None:
    count = shape.count(",") + 1
    model = model_of(
        f"g () => (float[] y) {{ s = Constant <value = int64[{count}] {shape}> () "
        "y = ConstantOfShape (s) }"
    )
    with pytest.raises(UserError, match="a tensor is too large"):
        load_model(model)


def test_models_that_nest_deeper_than_python_calls() -> None:
    model = model_of("g (bool c) => (float[1] y) { y = Constant <value_floats = [1.0]> () }")
    graph = model.graph
    for _ in range(2000):
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = node.attribute[0].g
    with pytest.raises(UserError):
        load_model(model)


def test_hostile_names_stay_names() -> None:
    model = model_of("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    evil = '"; */ ../ %n \n'
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = evil
    model.graph.node[0].name = evil
    graph = load_model(model)
    assert not set(graph.inputs[0].type.shape[0].key.strip('"')) & set(evil) - set(". n")
