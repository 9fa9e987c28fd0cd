"""A decoder block whose sizes ranks do not divide: ten heads, and a vocabulary of 50,257 words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, HEADS, LENGTH, VOCABULARY = 32, 10, 64, 50_257
WIDTH = HEADS * LENGTH
_NODES = """
table_rows = Gather<axis = 0>(table, ids)
queries = MatMul(table_rows, wq)
keys = MatMul(table_rows, wk)
values = MatMul(table_rows, wv)
q_heads = Reshape(queries, parted)
k_heads = Reshape(keys, parted)
v_heads = Reshape(values, parted)
q = Transpose<perm = [1, 0, 2]>(q_heads)
k = Transpose<perm = [1, 2, 0]>(k_heads)
v = Transpose<perm = [1, 0, 2]>(v_heads)
scores = MatMul(q, k)
shares = Softmax<axis = -1>(scores)
mixed = MatMul(shares, v)
mixed_rows = Transpose<perm = [1, 0, 2]>(mixed)
joined = Reshape(mixed_rows, flat)
attended = MatMul(joined, wo)
hidden = Add(table_rows, attended)
widened = MatMul(hidden, wide)
active = Relu(widened)
narrowed = MatMul(active, narrow)
last = Add(hidden, narrowed)
logits = MatMul(last, head)
"""


def save(path: Path) -> Path:
    """Writes the model, with seeded weights, to `path`, and returns `path`."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    ten_heads (int64[{TOKENS}] ids) => (float[{TOKENS}, {VOCABULARY}] logits) {{ {_NODES} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(10)
    sizes = {name: (WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")}
    sizes |= {"table": (VOCABULARY, WIDTH), "head": (WIDTH, VOCABULARY)}
    sizes |= {"wide": (WIDTH, 4 * WIDTH), "narrow": (4 * WIDTH, WIDTH)}
    for name, shape in sizes.items():
        # Values keep their size from layer to layer.
        scale = 1 if name == "table" else shape[0] ** -0.5
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for name, shape in (("parted", (TOKENS, HEADS, LENGTH)), ("flat", (TOKENS, WIDTH))):
        sizes_of = helper.make_tensor(name, TensorProto.INT64, [len(shape)], shape)
        model.graph.initializer.append(sizes_of)
    onnx.save(model, path)
    return path
