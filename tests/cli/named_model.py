"""A small model whose names contain quotes and HTML, and a copy of its artifact for another
machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import tcc
from tcc.runtime.sections import SEAL, SEAL_MAGIC

# A symbolic batch, two equal layers, names with quotes and HTML, and a function of the runtime.
MODEL = """<ir_version: 9, opset_import: ["": 17]>
    layers (float[batch, 8] x) => (float[batch, 8] y, int64[batch, 8] order)
    <float[8, 8] w = {0}> {
        a = MatMul(x, w)  b = Softmax(a)  c = MatMul(b, w)  k = Constant <value_ints = [8]> ()
        y, order = TopK(c, k)
    }"""
NAMES = ("first", "<b>\"soft\" & 'max'</b>", "second", "k", "top")


def compile_model(folder: Path) -> Path:
    """Writes the model to a folder, compiles it, and returns the path of its artifact."""
    # Equal columns would be multiplied once.
    weights = ", ".join(f"{n * n % 67 / 67:.3f}" for n in range(64))
    model = onnx.parser.parse_model(MODEL.replace("{0}", f"{{{weights}}}"))
    for node, name in zip(model.graph.node, NAMES, strict=True):
        node.name = name
    onnx.save(model, folder / "layers.onnx")
    tcc.compile(folder / "layers.onnx").save(folder / "layers.so")
    return folder / "layers.so"


def other_machine(compiled: Path, folder: Path) -> Path:
    """Writes a copy of an artifact whose manifest names another machine and whose seal is valid."""
    data = bytearray(compiled.read_bytes())
    start = data.index(SEAL_MAGIC)
    number = int.from_bytes(data[18:20], "little")
    data[18:20] = (183 if number == 62 else 62).to_bytes(2, "little")
    digest = hashlib.sha256(data[:start]).digest()
    data[start : start + SEAL.size] = SEAL.pack(SEAL_MAGIC, start, digest)
    (folder / "foreign.so").write_bytes(data)
    return folder / "foreign.so"
