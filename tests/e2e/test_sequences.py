"""Models with sequences and optionals agree with Python lists, from ONNX to results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tcc
from onnx import TensorProto, TypeProto, helper
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ops.data.lists import pack

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info
sequence = helper.make_tensor_sequence_value_info


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 18) -> Any:
    graph = helper.make_graph(nodes, "lists", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def optional(name: str, inner: TypeProto) -> Any:
    return helper.make_value_info(name, helper.make_optional_type_proto(inner))


def ramp(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            same(a, e)
    elif expected is None:
        assert actual is None
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


def carried(value: Any) -> Any:
    """Converts a value to the evaluator's form."""
    if value is None:
        return pack(())
    return pack([carried(v) for v in value]) if isinstance(value, list) else value


def test_lists_of_torch_give_tensors_back() -> None:
    torch = pytest.importorskip("torch")
    nodes = [helper.make_node("SequenceInsert", ["s", "x"], ["y"])]
    inputs = [sequence("s", F32, ["n"]), info("x", F32, ["n"])]
    module = tcc.compile(model(nodes, inputs, [sequence("y", F32, ["n"])]))
    results = module([torch.ones(2)], np.zeros(1, np.float32))
    assert [result.tolist() for result in results] == [[1, 1], [0]]
    assert all(isinstance(result, torch.Tensor) for result in results)
    assert all(isinstance(result, np.ndarray) for result in module([], np.zeros(1, np.float32)))


def test_places_that_only_the_run_knows() -> None:
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x", "p"], ["more"]),
        helper.make_node("SequenceErase", ["s", "p"], ["less"]),
        helper.make_node("SequenceAt", ["s", "p"], ["at"]),
        helper.make_node("Mul", ["at", "two"], ["doubled"]),
        helper.make_node("SequenceLength", ["more"], ["length"]),
        helper.make_node("ConcatFromSequence", ["more"], ["joined"], axis=-2),
        helper.make_node("SplitToSequence", ["joined", "sizes"], ["pieces"], axis=0),
    ]
    inputs = [
        sequence("s", F32, ["n", 2]), info("x", F32, [1, 2]), info("p", I64, [1]),
        info("two", F32, []), info("sizes", I64, ["k"]),
    ]  # fmt: skip
    outputs = [sequence("more", F32, None), sequence("less", F32, None)]
    outputs += [info("doubled", F32, None), info("length", I64, []), info("joined", F32, None)]
    outputs += [sequence("pieces", F32, None)]
    proto = model(nodes, inputs, outputs)
    module = tcc.compile(proto, jobs=1)
    assert [port.kind for port in module.inputs] == ["sequence", *["tensor"] * 4]
    assert module.inputs[0].dtype == "sequence(f32[?,2])"
    items = [ramp(3, 2), ramp(1, 2), ramp(0, 2) + 7]
    graph = load_model(proto)
    for p in (-3, -1, 0, 1, 2):
        feeds = {
            "s": items, "x": -ramp(1, 2), "p": np.array([p]),
            "two": np.float32(2), "sizes": np.array([2, 0, 3]),
        }  # fmt: skip
        results = module.run(feeds)
        more, less = list(items), list(items)
        more.insert(p + 3 if p < 0 else p, feeds["x"])
        del less[p]
        concatenated = np.concatenate(more)
        same(results["more"], more)
        same(results["less"], less)
        same(results["doubled"], items[p] * 2)
        same(results["length"], np.array(4))
        same(results["joined"], concatenated)
        same(results["pieces"], [concatenated[:2], concatenated[2:2], concatenated[2:]])
        arrays = {n: carried(v) if n == "s" else np.asarray(v) for n, v in feeds.items()}
        for name, value in evaluate_graph(graph, arrays).items():
            same(results[name], list(value[()]) if value.dtype == object else value)
    for change, why in (
        ({"p": np.array([3])}, "position 3 in a sequence of 3"),
        ({"p": np.array([-4])}, "position -4 in a sequence of 3"),
        ({"s": [ramp(3, 3)]}, "another size"),
        ({"s": [ramp(3)]}, "number of dimensions"),
        ({"s": [ramp(3, 2).astype(np.float64)]}, "element type"),
        ({"s": ramp(3, 2)}, "expected a list"),
        ({"sizes": np.array([9])}, "a piece of 9"),
        ({"sizes": np.array([-1])}, "a piece of -1"),
        ({"sizes": np.array([1])}, "pieces have 1 elements"),
    ):
        with pytest.raises(tcc.UserError, match=why):
            module.run({**feeds, **change})


def test_sequences_of_known_length_leave_no_ops() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("SequenceAt", ["rows", "one"], ["row"]),
        helper.make_node("SequenceInsert", ["rows", "row", "one"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=0, new_axis=1),
        helper.make_node("Optional", ["row"], ["maybe"]),
        helper.make_node("OptionalHasElement", ["maybe"], ["has"]),
    ]
    proto = model(nodes, [info("x", F32, [3, 2])], [info("y", F32, None), info("has", BOOL, None)])
    graph = load_model(proto)
    assert not [n for n in graph.nodes if n.op.name.startswith("list_")]
    y, has = tcc.compile(proto, jobs=1)(ramp(3, 2))
    same(y, ramp(3, 2)[[0, 1, 1, 2]])
    assert has


def loop_body() -> Any:
    """Returns a body that appends `i` ones to a sequence, which is absent at first."""
    tensor = helper.make_tensor_type_proto(F32, None)
    start = helper.make_graph(
        [helper.make_node("SequenceEmpty", [], ["fresh"])], "start", [],
        [sequence("fresh", F32, None)],
    )  # fmt: skip
    go_on = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["maybe"], ["old"])], "go_on", [],
        [sequence("old", F32, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("OptionalHasElement", ["maybe"], ["has"]),
        helper.make_node("If", ["has"], ["now"], then_branch=go_on, else_branch=start),
        helper.make_node("Reshape", ["i", "vector"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["ones"],
                         value=helper.make_tensor("v", F32, [1], [1.0])),
        helper.make_node("SequenceInsert", ["now", "ones"], ["next"]),
        helper.make_node("Identity", ["go"], ["goes"]),
    ]  # fmt: skip
    inputs = [info("i", I64, []), info("go", BOOL, [])]
    inputs.append(optional("maybe", helper.make_sequence_type_proto(tensor)))
    return helper.make_graph(
        nodes, "body", inputs, [info("goes", BOOL, []), sequence("next", F32, None)]
    )


def test_loops_that_carry_sequences() -> None:
    nodes = [
        helper.make_node("Constant", [], ["vector"], value_ints=[1]),
        helper.make_node("Loop", ["trips", "", "given"], ["made"], body=loop_body()),
        helper.make_node("SequenceLength", ["made"], ["length"]),
    ]
    tensor = helper.make_tensor_type_proto(F32, ["k"])
    inputs = [info("trips", I64, [])]
    inputs.append(optional("given", helper.make_sequence_type_proto(tensor)))
    proto = model(nodes, inputs, [sequence("made", F32, None)])
    del proto.graph.node[2]
    module = tcc.compile(proto, jobs=1)
    assert module.inputs[1].kind == "optional"
    rows_of_ones = [np.ones(n, np.float32) for n in range(200)]
    same(module(np.array(3), None), rows_of_ones[:3])
    same(module(np.array(2), [ramp(2)]), [ramp(2), *rows_of_ones[:2]])
    same(module(np.array(0), [ramp(2)]), [ramp(2)])
    same(module(np.array(200), []), rows_of_ones)
    with pytest.raises(tcc.UserError, match="no element"):
        module(np.array(0), None)


def test_sequences_of_strings_and_maps() -> None:
    body = helper.make_graph(
        [helper.make_node("StringConcat", ["e", "t"], ["f"])], "body",
        [info("e", TensorProto.STRING, ["n"]), info("t", TensorProto.STRING, [1])],
        [info("f", TensorProto.STRING, ["n"])],
    )  # fmt: skip
    nodes = [helper.make_node("SequenceMap", ["s", "t"], ["y"], body=body)]
    inputs = [sequence("s", TensorProto.STRING, ["n"]), info("t", TensorProto.STRING, [1])]
    module = tcc.compile(model(nodes, inputs, [sequence("y", TensorProto.STRING, ["n"])]), jobs=1)
    results = module([["a", "b"], [], ["é"]], ["!"])
    assert [x.tolist() for x in results] == [["a!", "b!"], [], ["é!"]]
    assert module([], ["!"]) == []


def test_unknown_ranks_are_refused_by_name() -> None:
    nodes = [helper.make_node("SequenceAt", ["s", "p"], ["y"])]
    inputs = [sequence("s", F32, None), info("p", I64, [])]
    with pytest.raises(tcc.UserError, match="number of dimensions of the entries"):
        load_model(model(nodes, inputs, [info("y", F32, None)]))


def test_gpus_refuse_sequences_by_name() -> None:
    nodes = [helper.make_node("Identity", ["s"], ["y"])]
    proto = model(nodes, [sequence("s", F32, None)], [sequence("y", F32, None)])
    with pytest.raises(tcc.UserError, match="cuda has no strings, sequences"):
        tcc.compile(proto, target="cuda:sm_80", jobs=1)
