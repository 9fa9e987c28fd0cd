"""Hostile torch archives (.pt2), written by hand, so that neither writing nor reading needs
torch."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .hostile_case import Case, Outcome

_WEIGHT = np.arange(12, dtype=np.float32)
Members = dict[str, bytes]


def cases() -> Iterator[Case]:
    yield _case("clean", Outcome.WORKS, packed(members()))
    yield _case("traced", Outcome.WORKS, _call("aten.eye.default", n={"as_int": 3}))
    yield from _zips()
    yield from _programs()
    yield from _weights()


def _case(name: str, outcome: Outcome, data: bytes) -> Case:
    def write(folder: Path) -> None:
        (folder / "m.pt2").write_bytes(data)

    return Case(f"archive-{name}", outcome, write)


# ---- a valid archive -----------------------------------------------------------------------------


def tensor(*sizes: Any, dtype: int = 7) -> dict[str, Any]:
    """Returns the format's description of a contiguous tensor."""
    dims = [size if isinstance(size, dict) else {"as_int": size} for size in sizes]
    strides = [
        {"as_int": int(np.prod([d.get("as_int", 1) for d in dims[n + 1 :]], dtype=object))}
        for n in range(len(dims))
    ]
    return {
        "dtype": dtype, "sizes": dims, "requires_grad": False, "strides": strides,
        "device": {"type": "cpu", "index": None}, "storage_offset": {"as_int": 0}, "layout": 7,
    }  # fmt: skip


def node(target: str, result: str, **arguments: Any) -> dict[str, Any]:
    """Returns a call; a text as an argument is the name of a tensor."""
    inputs_written = [
        {"name": name, "arg": {"as_tensor": {"name": v}} if isinstance(v, str) else v, "kind": 1}
        for name, v in arguments.items()
    ]
    outputs = [{"as_tensor": {"name": result}}]
    return {
        "target": f"torch.ops.{target}",
        "inputs": inputs_written,
        "outputs": outputs,
        "metadata": {},
    }


def program() -> dict[str, Any]:
    """Returns the program x @ w + 1."""
    one = {"as_int": 1}
    leaf = {"type": None, "context": None, "children_spec": []}
    graph = {
        "inputs": [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "x"}}],
        "outputs": [{"as_tensor": {"name": "y"}}],
        "nodes": [
            node("aten.mm.default", "t", self="x", mat2="p_w"),
            node("aten.add.Tensor", "y", self="t", other=one),
        ],
        "tensor_values": {
            "p_w": tensor(3, 4), "x": tensor(2, 3), "t": tensor(2, 4), "y": tensor(2, 4),
        },
        "sym_int_values": {}, "sym_float_values": {}, "sym_bool_values": {},
        "is_single_tensor_return": False, "custom_obj_values": {},
    }  # fmt: skip
    signature = {
        "input_specs": [
            {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
            {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
        ],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}],
    }
    named = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    tuple_spec = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    specs = {"in_spec": {**tuple_spec, "children_spec": [tuple_spec, named]}, "out_spec": leaf}
    texts = {name: json.dumps([1, spec]) for name, spec in specs.items()}
    calls = [{"fqn": "", "signature": texts}]
    return {
        "graph_module": {
            "graph": graph, "signature": signature, "module_call_graph": calls,
            "metadata": {}, "treespec_namedtuple_fields": {},
        },
        "range_constraints": {}, "schema_version": {"major": 8, "minor": 20},
    }  # fmt: skip


def members(
    content: Any = None, config: Mapping[str, Any] | None = None, weight: bytes | None = None
) -> Members:
    """Returns the members of an archive."""
    meta = {"path_name": "weight_0", "is_param": True, "use_pickle": False}
    meta |= {"tensor_meta": tensor(3, 4)} | dict(config or {})
    return {
        "m/data/weights/weight_0": _WEIGHT.tobytes() if weight is None else weight,
        "m/data/weights/model_weights_config.json": json.dumps({"config": {"w": meta}}).encode(),
        "m/data/constants/model_constants_config.json": b'{"config": {}}',
        "m/models/model.json": content
        if isinstance(content, bytes)
        else json.dumps(program() if content is None else content).encode(),
        "m/archive_format": b"pt2",
        "m/archive_version": b"0",
        "m/byteorder": b"little",
    }


def packed(parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return buffer.getvalue()


# ---- the zip file --------------------------------------------------------------------------------


def _zips() -> Iterator[Case]:
    good = packed(members())
    for part in range(1, 8):
        yield _case(f"cut-{part}", Outcome.REFUSED, good[: len(good) * part // 8])
    bomb = members() | {"m/data/weights/weight_0": bytes(1 << 24)}
    bad: dict[str, bytes] = {
        "bomb": packed(bomb, zipfile.ZIP_DEFLATED),
        "parent": packed(members() | {"m/../../etc/x": b"1"}),
        "root": packed(members() | {"/etc/x": b"1"}),
        "backslash": packed(members() | {"m\\..\\x": b"1"}),
        "two-folders": packed(members() | {"n/x": b"1"}),
        "bare-name": packed(members() | {"x": b"1"}),
        "no-program": packed({k: v for k, v in members().items() if "models" not in k}),
        "two-programs": packed(members() | {"m/models/other.json": b"{}"}),
        "no-weights": packed({k: v for k, v in members().items() if "weight" not in k}),
        "no-format": packed({k: v for k, v in members().items() if "format" not in k}),
        "big-endian": packed(members() | {"m/byteorder": b"big"}),
        "pickled-old": packed({"serialized_exported_program.json": b"{}", "version": b"8.20"}),
        "twice": _twice(),
        "checksum": good.replace(_WEIGHT.tobytes(), _WEIGHT.tobytes()[::-1]),
        "overlap": _overlapping(good),
        "directory-outside": good[:-6] + struct.pack("<L", 0x7FFFFFF0) + good[-2:],
        "pickle": pickle.dumps({"w": _WEIGHT}),
        "empty": b"",
    }
    for name, data in bad.items():
        yield _case(name, Outcome.REFUSED, data)
    # The reader goes by the directory's size, not by its count.
    yield _case("counted", Outcome.WORKS, _counted(good, 0xFFFE))
    for at in range(0, len(good), max(len(good) // 24, 1)):
        flipped = bytearray(good)
        flipped[at] ^= 0x10
        yield _case(f"flip-{at}", Outcome.EITHER, bytes(flipped))


def _twice() -> bytes:
    """Returns an archive with two members of one name."""
    parts = members() | {"m/models/other.json": json.dumps(program()).encode()}
    return packed(parts).replace(b"models/other.json", b"models/model.json")


def _overlapping(good: bytes) -> bytes:
    """Returns an archive whose second directory entry points to the first member."""
    first = good.index(b"PK\x01\x02")
    second = good.index(b"PK\x01\x02", first + 4)
    return good[: second + 42] + good[first + 42 : first + 46] + good[second + 46 :]


def _counted(good: bytes, count: int) -> bytes:
    return good[:-14] + struct.pack("<2H", count, count) + good[-10:]


# ---- the program ---------------------------------------------------------------------------------


def _changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    content = program()
    change(content, content["graph_module"]["graph"])
    return packed(members(content))


def _call(target: str, **arguments: Any) -> bytes:
    """Returns the program with an additional first call, whose result nothing reads."""

    def change(content: Any, graph: Any) -> None:
        graph["nodes"].insert(0, node(target, "u", **arguments))
        graph["tensor_values"]["u"] = tensor(2, 3)

    return _changed(change)


def _sized(text: str) -> bytes:
    """Returns the program with this expression as the first dimension of the input."""
    size = {"as_expr": {"expr_str": text, "hint": {"as_int": 2}}}

    def change(content: Any, graph: Any) -> None:
        graph["tensor_values"]["x"]["sizes"][0] = size

    return _changed(change)


def _programs() -> Iterator[Case]:
    def put(name: str, value: Any) -> Callable[[Any, Any], None]:
        return lambda content, graph: graph.__setitem__(name, value)

    first = {"as_int": 1}
    bad = {
        "json": packed(members(b"{")),
        "json-list": packed(members([])),
        "json-deep": packed(members(b"[" * 100_000 + b"]" * 100_000)),
        "json-digits": packed(members(b"1" * 100_000)),
        "json-utf8": packed(members(b"\xff\xfe{}")),
        "version": _changed(lambda c, g: c["schema_version"].update(major=9)),
        "cycle": _changed(lambda c, g: g["nodes"].reverse()),
        "itself": _changed(lambda c, g: g["nodes"].insert(
            0, node("aten.relu.default", "u", self="u"))),
        "unknown-value": _changed(put("outputs", [{"as_tensor": {"name": "z"}}])),
        "twice-defined": _changed(lambda c, g: g["nodes"].append(g["nodes"][0])),
        "no-outputs": _changed(put("outputs", [])),
        "no-nodes": _changed(put("nodes", None)),
        "name": _changed(lambda c, g: g["inputs"].append({"as_tensor": {"name": "../x\n"}})),
        "target-getattr": _call("__class__.__base__.default", self="x"),
        "target-import": _changed(lambda c, g: g["nodes"][0].update(target="os.system")),
        "target-text": _changed(lambda c, g: g["nodes"][0].update(target="a b; c")),
        "missing-argument": _call("aten.convolution.default", input="x"),
        "wrong-argument": _call("aten.sum.dim_IntList", self="x", dim="x"),
        "wrong-rank": _call("aten.permute.default", self="x", dims={"as_ints": [0]}),
        "wrong-axis": _call("aten.softmax.int", self="x", dim={"as_int": 1 << 70}),
        "no-type": _changed(lambda c, g: g["tensor_values"]["y"].update(dtype=[])),
        "huge": _changed(lambda c, g: g["tensor_values"].update(x=tensor(1 << 60, 3))),
        "negative": _changed(lambda c, g: g["tensor_values"].update(x=tensor(-1, 3))),
        "parts": _call("aten.adaptive_avg_pool2d.default", self="x",
                       output_size={"as_ints": [1 << 30, 1 << 30]}),
        "zero-groups": _call("aten.conv1d.default", input="x", weight="p_w",
                             groups={"as_int": 0}),
        "object": _call("aten.relu.default", self={"as_custom_obj": {"name": "x"}}),
        "two-kinds": _call("aten.relu.default", self={"as_int": 1, "as_bool": True}),
        "treespec": _changed(lambda c, g: c["graph_module"]["module_call_graph"][0]["signature"]
                             .update(out_spec="[1, [1, {}]]")),
        "range": _changed(lambda c, g: c.update(range_constraints={"s0": 3})),
        "parameter": _changed(lambda c, g: c["graph_module"]["signature"]["input_specs"][0][
            "parameter"].update(parameter_name="../w")),
        "token": _changed(lambda c, g: c["graph_module"]["signature"]["input_specs"].append(
            {"token": {"arg": {"name": "t"}}})),
        "formula-import": _sized("__import__('os').system('touch pwned')"),
        "formula-attribute": _sized("Symbol('s0').__class__"),
        "formula-lambda": _sized("(lambda: 1)()"),
        "formula-deep": _sized("Add(" * 5000 + "1" + ")" * 5000),
        "formula-long": _sized("Add(" + "Integer(1), " * 20_000 + "Integer(1))"),
        "formula-power": _sized("Pow(Symbol('s0', integer=True), Integer(999999999))"),
        "formula-digits": _sized(f"Integer({'9' * 50_000})"),
        "formula-unclosed": _sized("Add(Integer(1), "),
    }  # fmt: skip
    for name, data in bad.items():
        yield _case(name, Outcome.REFUSED, data)
    odd = {
        "wrong-type": _changed(lambda c, g: g["tensor_values"]["y"].update(dtype=12)),
        "arange": _call("aten.arange.default", end={"as_int": 1 << 36}),
        "eye": _call("aten.eye.default", n={"as_int": 1 << 18}),
        "linspace": _call("aten.linspace.default", start=first, end=first,
                          steps={"as_int": 1 << 36}),
        "repeat": _call("aten.repeat.default", self="x", repeats={"as_ints": [1 << 17, 1 << 17]}),
        "pad": _call("aten.constant_pad_nd.default", self="x", pad={"as_ints": [1 << 40, 0]}),
        "roll": _call("aten.roll.default", self="x", shifts={"as_ints": [1 << 62]},
                      dims={"as_ints": [0]}),
        "window": _call("aten.hann_window.default", window_length={"as_int": 1 << 36}),
    }  # fmt: skip
    for name, data in odd.items():
        yield _case(f"odd-{name}", Outcome.EITHER, data)


# ---- weights -------------------------------------------------------------------------------------


def _meta(**changes: Any) -> bytes:
    return packed(members(config={"tensor_meta": tensor(3, 4) | changes}))


def _weights() -> Iterator[Case]:
    def ints(*values: int) -> list[dict[str, int]]:
        return [{"as_int": v} for v in values]

    bad = {
        "pickled": packed(members(config={"use_pickle": True}, weight=pickle.dumps([1]))),
        "short": packed(members(weight=_WEIGHT.tobytes()[:-4])),
        "other-shape": _meta(sizes=ints(4, 3), strides=ints(3, 1)),
        "other-type": _meta(dtype=5),
        "unknown-type": _meta(dtype=99),
        "sparse": _meta(layout=1),
        "strides": _meta(strides=ints(1 << 40, 1)),
        "strides-negative": _meta(strides=ints(-4, 1)),
        "offset": _meta(storage_offset={"as_int": 1}),
        "offset-negative": _meta(storage_offset={"as_int": -1}),
        "product": _meta(sizes=ints(1 << 62, 4), strides=ints(0, 0)),
        "shared": _meta(sizes=ints(1 << 30, 4), strides=ints(0, 1)),
        "rank": _meta(sizes=ints(*[1] * 1000), strides=ints(*[1] * 1000)),
        "path": packed(members(config={"path_name": "../../../etc/passwd"})),
        "path-absolute": packed(members(config={"path_name": "/etc/passwd"})),
    }
    for name, data in bad.items():
        yield _case(f"weight-{name}", Outcome.REFUSED, data)
