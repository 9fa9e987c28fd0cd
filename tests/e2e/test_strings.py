"""Models with strings agree with Python's own strings, from ONNX to results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper
from tcc.cli import execute
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

STRING, F32, I64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
info = helper.make_tensor_value_info


def model(nodes: list[Any], inputs: list[Any], outputs: list[str], kinds: list[int]) -> Any:
    declared = [info(n, k, None) for n, k in zip(outputs, kinds, strict=True)]
    graph = helper.make_graph(nodes, "strings", inputs, declared)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def const(name: str, value: Any) -> Any:
    """Returns a Constant node; a list of str becomes strings."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        tensor = helper.make_tensor(name, STRING, [len(value)], [v.encode() for v in value])
    else:
        tensor = onnx.numpy_helper.from_array(np.asarray(value), name)
    return helper.make_node("Constant", [], [name], value=tensor)


def objects(value: Any) -> Any:
    return np.array(value, object)


def run_both(proto: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of the compiled model, after a comparison with the evaluator."""
    carried = {n: a.astype(object) if a.dtype.kind in "US" else a for n, a in feeds.items()}
    expected = evaluate_graph(load_model(proto), carried)
    actual: dict[str, Any] = tcc.compile(proto, jobs=1).run(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
    return actual


def test_movement_of_strings() -> None:
    """Plain kernels move, select and compare strings."""
    nodes = [
        const("more", ["x", "b"]),
        const("at", np.array([1, 0, 1])),
        const("pads", np.array([1, 2])),
        const("shape", np.array([2, -1])),
        const("wide", np.array([2, 4])),
        const("twice", np.array([2])),
        helper.make_node("Concat", ["s", "more"], ["joined"], axis=0),
        helper.make_node("Gather", ["s", "at"], ["taken"]),
        helper.make_node("Pad", ["s", "pads"], ["padded"]),
        helper.make_node("Reshape", ["s", "shape"], ["square"]),
        helper.make_node("Transpose", ["square"], ["turned"]),
        helper.make_node("Expand", ["s", "wide"], ["expanded"]),
        helper.make_node("Tile", ["s", "twice"], ["tiled"]),
        helper.make_node("Equal", ["s", "t"], ["same"]),
        helper.make_node("Where", ["same", "s", "t"], ["chosen"]),
        helper.make_node("Unique", ["s"], ["values", "first", "inverse", "counts"]),
        helper.make_node("Compress", ["s", "same"], ["kept"]),
    ]
    names = ["joined", "taken", "padded", "turned", "expanded", "tiled", "chosen", "values"]
    names += ["kept", "same", "first", "inverse", "counts"]
    kinds = [STRING] * 9 + [TensorProto.BOOL] + [I64] * 3
    proto = model(nodes, [info("s", STRING, [4]), info("t", STRING, [4])], names, kinds)
    s, t = objects(["b", "é", "a", "b"]), objects(["b", "", "a", "c"])
    outputs = run_both(proto, {"s": s, "t": t})
    assert outputs["joined"].tolist() == ["b", "é", "a", "b", "x", "b"]
    assert outputs["taken"].tolist() == ["é", "b", "é"]
    assert outputs["padded"].tolist() == ["", "b", "é", "a", "b", "", ""]
    assert outputs["turned"].tolist() == [["b", "a"], ["é", "b"]]
    assert outputs["expanded"].tolist() == [s.tolist()] * 2
    assert outputs["tiled"].tolist() == s.tolist() * 2
    assert outputs["same"].tolist() == [True, False, True, False]
    assert outputs["chosen"].tolist() == ["b", "", "a", "c"]
    assert outputs["kept"].tolist() == ["b", "a"]
    assert outputs["values"].tolist() == ["a", "b", "é"]
    assert outputs["first"].tolist() == [2, 0, 1]
    assert outputs["inverse"].tolist() == [1, 2, 0, 1]
    assert outputs["counts"].tolist() == [1, 2, 1]


def test_strings_of_symbolic_sizes_and_all_kinds_of_arrays() -> None:
    nodes = [
        helper.make_node("StringConcat", ["s", "t"], ["both"]),
        helper.make_node("StringSplit", ["both"], ["pieces", "counts"], delimiter="-"),
        helper.make_node(
            "StringNormalizer", ["s"], ["normal"], case_change_action="UPPER", stopwords=["no"]
        ),
        helper.make_node("RegexFullMatch", ["both"], ["fits"], pattern="[a-z]+-.*"),
        helper.make_node("Cast", ["n"], ["text"], to=STRING),
        helper.make_node("Cast", ["text"], ["number"], to=F32),
    ]
    inputs = [info("s", STRING, ["n"]), info("t", STRING, [1]), info("n", F32, ["m"])]
    names = ["both", "pieces", "normal", "text", "counts", "fits", "number"]
    kinds = [STRING, STRING, STRING, STRING, I64, TensorProto.BOOL, F32]
    proto = model(nodes, inputs, names, kinds)
    s, n = ["no", "straße", "a-b", "No"], np.array([0.1, -2e20, 3, np.inf], np.float32)
    outputs = run_both(proto, {"s": objects(s), "t": objects(["-x"]), "n": n})
    assert outputs["both"].tolist() == [f"{text}-x" for text in s]
    assert outputs["pieces"].tolist()[2] == ["a", "b", "x"]
    assert outputs["pieces"].tolist()[0] == ["no", "x", ""]
    assert outputs["counts"].tolist() == [2, 2, 3, 2]
    assert outputs["normal"].tolist() == ["STRASSE", "A-B"]
    assert outputs["fits"].tolist() == [True, False, True, False]
    assert outputs["text"].tolist() == ["0.1", "-2e+20", "3", "INF"]
    assert outputs["number"].tolist() == n.tolist()
    module = tcc.compile(proto, jobs=1)
    for array in (np.array(s), s, np.array([x.encode() for x in s]), objects(s)[::1]):
        assert module(array, ["-x"], n)[0].tolist() == outputs["both"].tolist()
    assert module(objects(s)[::-1], ["-x"], n)[0].tolist() == outputs["both"].tolist()[::-1]
    assert module([], ["-x"], n[:0])[1].shape == (0, 0)
    odd = b"\xff\0\xc3".decode("utf-8", "surrogateescape")
    assert module([odd], [odd], n)[0].tolist() == [odd + odd]


def test_wrong_inputs_are_refused() -> None:
    proto = model(
        [helper.make_node("Cast", ["s"], ["y"], to=I64)], [info("s", STRING, [2])], ["y"], [I64]
    )
    module = tcc.compile(proto, jobs=1)
    assert module(["1", "-20"]).tolist() == [1, -20]
    for array, why in (
        (np.zeros(2), "array of strings"),
        ([1, 2], "expected strings"),
        (["1"], r"expected shape \[2\]"),
        (["1", "x"], "cannot be read as a number"),
        (["1", "9223372036854775808"], "too small"),
        (["1", "1\0"], "other characters"),
        (["1", "1" * 200], "200 bytes"),
    ):
        with pytest.raises(tcc.UserError, match=why):
            module(array)


def test_gpus_refuse_strings_by_name() -> None:
    proto = model(
        [helper.make_node("Identity", ["s"], ["y"])], [info("s", STRING, [2])], ["y"], [STRING]
    )
    with pytest.raises(tcc.UserError, match="cuda has no strings"):
        tcc.compile(proto, target="cuda:sm_80", jobs=1)


def test_strings_are_no_state() -> None:
    proto = model(
        [helper.make_node("StringConcat", ["s", "s"], ["y"])],
        [info("s", STRING, [2])], ["y"], [STRING],
    )  # fmt: skip
    with pytest.raises(tcc.UserError, match="cannot be updated in place"):
        tcc.compile(proto, state={"s": "y"}, jobs=1)


def test_numbers_do_not_take_strings() -> None:
    for op, operands in (("Relu", ["s"]), ("Add", ["s", "s"])):
        node = helper.make_node(op, operands, ["y"])
        proto = model([node], [info("s", STRING, [2])], ["y"], [STRING])
        with pytest.raises(tcc.UserError, match="string"):
            load_model(proto)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = model(
        [helper.make_node("StringConcat", ["s", "s"], ["y"])],
        [info("s", STRING, [2])], ["y"], [STRING],
    )  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx")
    np.save(tmp_path / "s.npy", np.array(["a", "日本"]))
    arguments = ["run", str(tmp_path / "m.onnx"), "--input", f"s=@{tmp_path / 's.npy'}"]
    assert execute(arguments) == 0
    assert "y: string 2: 'aa', '日本日本'" in capsys.readouterr().out
    assert execute([*arguments[:2], "--input", "s=2xstring=x", "--output", str(tmp_path)]) == 0
    assert np.load(tmp_path / "y.npy").tolist() == ["xx", "xx"]
    assert execute([*arguments, "--json"]) == 0
    assert '"dtype": "string"' in capsys.readouterr().out
