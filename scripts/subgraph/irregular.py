"""Builds gathers and operations on gathered rows:

FreeTensor's meshes, graphs and faces; embeddings.
"""

from __future__ import annotations

import numpy as np
from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw

_LOWEST = float(np.finfo(np.float32).min)


def subdivnet(faces: int) -> DrawnGraph:
    """Returns SubdivNet's convolution of a mesh, from 13 to 64 features.

    The result is the sum of four matmuls. Their operands are the face's own features and three sums
    over its three neighbours: the neighbours' features, the absolute differences between
    neighbours, and the absolute differences between the face and each neighbour.
    """
    w = GraphWriter()
    x = w.input("x", faces, 13)
    neighbours = w.input("near", faces, 3, dtype="int64", draw=ValueDraw("below", faces))
    neighbour_features = w.op("Gather", x, neighbours, axis=0)  # [faces, 3, 13]
    rotated = w.op("Gather", neighbour_features, w.ints(1, 2, 0), axis=1)
    between_neighbours = w.op("Abs", w.op("Sub", neighbour_features, rotated))
    from_face = w.op("Abs", w.op("Sub", w.op("Unsqueeze", x, w.ints(1)), neighbour_features))
    parts = [
        x,
        *(
            w.op("ReduceSum", p, w.ints(1), keepdims=0)
            for p in (neighbour_features, between_neighbours, from_face)
        ),
    ]
    features = None
    for number, part in enumerate(parts):
        term = w.op("MatMul", part, w.weight(f"w{number}", 13, 64))
        features = term if features is None else w.op("Add", features, term)
    return w.graph(str(features))


def gat(nodes: int, edges: int) -> DrawnGraph:
    """Returns graph attention with 32 features.

    For each node, a softmax over the edges that end in it weights the sum of the features of the
    edges' source nodes. Edges are sorted by the node in which they end. ONNX has no reductions over
    sparse rows, so scatters compute the maxima and sums.
    """
    w = GraphWriter()
    x = w.input("x", nodes, 32)
    ends = {"source": "below", "target": "rising"}
    source, target = (
        w.input(n, edges, dtype="int64", draw=ValueDraw(kind, nodes)) for n, kind in ends.items()
    )
    h = w.op("MatMul", x, w.weight("weight", 32, 32))
    lhs, right = (
        w.op("Squeeze", w.op("MatMul", h, w.weight(n, 32, 1)), w.ints(1)) for n in ("left", "right")
    )
    score = w.op("Add", w.op("Gather", lhs, source), w.op("Gather", right, target))
    score = w.op("LeakyRelu", score, alpha=0.2)
    lowest, zeros = (w.constant(np.full(nodes, value)) for value in (_LOWEST, 0.0))
    top = w.op("ScatterElements", lowest, target, score, reduction="max")
    power = w.op("Exp", w.op("Sub", score, w.op("Gather", top, target)))
    sums = w.op("ScatterElements", zeros, target, power, reduction="add")
    share = w.op("Div", power, w.op("Gather", sums, target))
    sent = w.op("Mul", w.op("Gather", h, source), w.op("Unsqueeze", share, w.ints(1)))
    rows = w.op("Unsqueeze", target, w.ints(1))
    empty = w.constant(np.zeros((nodes, 32)))
    return w.graph(w.op("ScatterND", empty, rows, sent, reduction="add"))


def softras(faces: int, size: int) -> DrawnGraph:
    """Returns SoftRas: the probability that a pixel belongs to a triangle, for size x size pixels
    and `faces` triangles.

    The probability is the sigmoid of a multiple of the pixel's squared distance from the
    triangle's edges, which counts as negative outside the triangle.
    """
    w = GraphWriter()
    corners = w.input("corners", faces, 3, 2, draw=ValueDraw("uniform", -1, 1))
    line = (np.arange(size) + 0.5) / size * 2 - 1
    # The coordinates of all pixels, of shape [size, size, 2].
    pixels = w.constant(np.stack(np.meshgrid(line, line, indexing="ij"), -1))
    ends = w.several("Split", 3, corners, axis=1, num_outputs=3)
    points = [w.op("Unsqueeze", end, w.ints(1)) for end in ends]  # [faces, 1, 1, 2] each
    pairs = [_edge(w, pixels, points[n], points[(n + 1) % 3]) for n in range(3)]
    nearest = w.op("Min", *(distance for distance, _ in pairs))
    low, high = (w.op(kind, *(side for _, side in pairs)) for kind in ("Min", "Max"))
    zero = w.constant(0.0)
    inside = w.op("Or", w.op("GreaterOrEqual", low, zero), w.op("LessOrEqual", high, zero))
    signed = w.op("Where", inside, nearest, w.op("Neg", nearest))
    return w.graph(w.op("Sigmoid", w.op("Mul", signed, w.constant(20.0))))


def _edge(w: GraphWriter, pixels: str, a: str, b: str) -> tuple[str, str]:
    """Adds each pixel's squared distance from the edge between the points `a` and `b`.

    Returns (squared distance, a number whose sign says on which side of the edge the pixel is).
    Both have the shape [faces, size, size].
    """
    along, off = w.op("Sub", b, a), w.op("Sub", pixels, a)
    square = _dot(w, along, along)
    share = w.op("Div", _dot(w, off, along), w.op("Max", square, w.constant(1e-8)))
    share = w.op("Clip", share, w.constant(0.0), w.constant(1.0))
    gap = w.op("Sub", off, w.op("Mul", w.op("Unsqueeze", share, w.ints(-1)), along))
    (ax, ay), (ox, oy) = _coordinates(w, along), _coordinates(w, off)
    side = w.op("Sub", w.op("Mul", ax, oy), w.op("Mul", ay, ox))
    return _dot(w, gap, gap), side


def _coordinates(w: GraphWriter, vectors: str) -> list[str]:
    return [w.op("Gather", vectors, w.constant(n, "int64"), axis=-1) for n in (0, 1)]


def _dot(w: GraphWriter, a: str, b: str) -> str:
    return w.op("ReduceSum", w.op("Mul", a, b), w.ints(-1), keepdims=0)


def gather(table: int, rows: int, width: int) -> DrawnGraph:
    """Returns a gather of `rows` rows of a table."""
    w = GraphWriter()
    indices = _indices(w, "which", table, rows)
    return w.graph(w.op("Gather", w.weight("table", table, width, draw=ValueDraw()), indices))


def embedding(batch: int, length: int, table: int) -> DrawnGraph:
    """Returns GPT-2's embedding: rows of a table of width 768, plus rows for the positions."""
    w = GraphWriter()
    tokens = _indices(w, "tokens", table, batch, length)
    rows = w.op("Gather", w.weight("table", table, 768, draw=ValueDraw()), tokens)
    return w.graph(w.op("Add", rows, w.weight("places", length, 768, draw=ValueDraw())))


def embedding_norm(batch: int, length: int, table: int) -> DrawnGraph:
    """Returns BERT's embedding: tokens, segments and positions are added, then LayerNorm."""
    w = GraphWriter()
    tokens = _indices(w, "tokens", table, batch, length)
    kinds = _indices(w, "kinds", 2, batch, length)
    rows = w.op("Gather", w.weight("table", table, 768, draw=ValueDraw()), tokens)
    summed = w.op(
        "Add", rows, w.op("Gather", w.weight("segments", 2, 768, draw=ValueDraw()), kinds)
    )
    summed = w.op("Add", summed, w.weight("places", length, 768, draw=ValueDraw()))
    gain = w.weight("gain", 768, draw=ValueDraw("uniform", 0.5, 1.5))
    return w.graph(w.op("LayerNormalization", summed, gain, w.weight("bias", 768), axis=-1))


def bag(bags: int, rows: int, width: int, table: int, mean: int) -> DrawnGraph:
    """Returns for each bag the sum of `rows` rows of a table; with `mean` 1, their mean."""
    w = GraphWriter()
    indices = _indices(w, "which", table, bags, rows)
    entries = w.op("Gather", w.weight("table", table, width, draw=ValueDraw()), indices)
    kind = "ReduceMean" if mean else "ReduceSum"
    return w.graph(w.op(kind, entries, w.ints(1), keepdims=0))


def bag_weighted(bags: int, rows: int, width: int, table: int) -> DrawnGraph:
    """Returns for each bag a weighted sum of `rows` rows of a table; an input has the weights."""
    w = GraphWriter()
    indices = _indices(w, "which", table, bags, rows)
    entries = w.op("Gather", w.weight("table", table, width, draw=ValueDraw()), indices)
    share = w.op("Unsqueeze", w.input("share", bags, rows), w.ints(-1))
    return w.graph(w.op("ReduceSum", w.op("Mul", entries, share), w.ints(1), keepdims=0))


def bags_of_tables(bags: int, rows: int, table: int) -> DrawnGraph:
    """Returns DLRM's embedding: for each bag, the sum of `rows` rows of each of 26 tables.

    Rows have width 64, and the sums are concatenated.
    """
    w = GraphWriter()
    parts = []
    for number in range(26):
        indices = _indices(w, f"which{number}", table, bags, rows)
        entries = w.op("Gather", w.weight(f"table{number}", table, 64, draw=ValueDraw()), indices)
        parts.append(w.op("ReduceSum", entries, w.ints(1), keepdims=0))
    return w.graph(w.op("Concat", *parts, axis=1))


def _indices(w: GraphWriter, name: str, top: int, *shape: int) -> str:
    return w.input(name, *shape, dtype="int64", draw=ValueDraw("below", top))
