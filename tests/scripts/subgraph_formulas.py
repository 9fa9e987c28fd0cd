"""The graphs of `scripts/subgraphs` again, in NumPy and f64: by formulas of papers, sums and loops
instead of nodes.

A formula takes the inputs and weights by name, floats as f64, and returns the results in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Given = Mapping[str, Any]
Formula = Callable[[Given], tuple[Any, ...]]


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def rms(x: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def layer_norm(x: Any, v: Given) -> Any:
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / deviation * v["gain"] + v["bias"]


def attention(
    v: Given,
    scale: float,
    change: Callable[[Any], Any] = lambda scores: scores,
    window: int | None = None,
    causal: bool = True,
) -> Any:
    """Returns attention, computed for each query over the keys that it sees: [batch, length, heads
    * size]."""
    q, k, values = v["q"], v["k"], v["v"]
    batch, length, heads, size = q.shape
    group = heads // k.shape[2]
    out = np.empty((batch, length, heads, size))
    scores = np.empty((batch, heads, length, length))
    for h in range(heads):
        scores[:, h] = np.einsum("bid,bjd->bij", q[:, :, h], k[:, :, h // group]) * scale
    scores = change(scores)
    for i in range(length):
        start = 0 if window is None else max(0, i + 1 - window)
        stop = i + 1 if causal else length
        for h in range(heads):
            shares = softmax(scores[:, h, i, start:stop])
            out[:, i, h] = np.einsum("bj,bjd->bd", shares, values[:, start:stop, h // group])
    return out.reshape(batch, length, heads * size)


def _alibi(v: Given) -> tuple[Any, ...]:
    places = np.arange(v["q"].shape[1])
    # up to a constant per row, which a softmax ignores
    bias = -(places[:, None] - places[None])
    slopes = np.array([2 ** (-(h + 1) / 2) for h in range(16)])
    return (attention(v, 1 / 8, lambda s: s + slopes[None, :, None, None] * bias),)


def _normalised(v: Given) -> tuple[Any, ...]:
    unit = {n: v[n] / np.sqrt((v[n] ** 2).sum(-1, keepdims=True)) for n in "qk"}
    scaled = {**v, **unit}
    return (attention(scaled, 1, lambda s: s * v["scale"] + v["bias"], causal=False),)


def _turned(x: Any) -> Any:
    """Rotates pairs (n, n + half), as complex numbers, by the angle of position and n: [b, l, h,
    d]."""
    half = x.shape[-1] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    angles = np.outer(np.arange(x.shape[1]), 10000.0 ** (-np.arange(half) / half))
    pairs = pairs * np.exp(1j * angles)[None, :, None]
    return np.concatenate([pairs.real, pairs.imag], -1)


def _qk_norm(window: int | None) -> Formula:
    def formula(v: Given) -> tuple[Any, ...]:
        rotated = {n: _turned(rms(v[n]) * v[f"{n}_norm"]) for n in "qk"}
        return (attention({**v, **rotated}, v["q"].shape[-1] ** -0.5, window=window),)

    return formula


def _mha(v: Given) -> tuple[Any, ...]:
    swapped = {n: v[n].transpose(0, 2, 1, 3) for n in "qkv"}
    return (attention(swapped, 1 / 8, lambda s: s + v["mask"], causal=False),)


def _appending(v: Given) -> tuple[Any, ...]:
    k, values = (np.concatenate([v[f"past_{n}"], v[n]], 2) for n in "kv")
    out = []
    for h in range(32):
        scores = np.einsum("bd,bjd->bj", v["q"][:, h, 0], k[:, h // 4]) / math.sqrt(128)
        out.append(np.einsum("bj,bjd->bd", softmax(scores), values[:, h // 4]))
    return np.concatenate(out, -1)[:, None], k, values


def _longformer(v: Given) -> tuple[Any, ...]:
    out = np.zeros_like(v["q"])
    length = out.shape[2]
    for h in range(8):
        step = 1 if h < 6 else 4
        for i in range(length):
            visible = [i + step * n for n in range(-32, 33) if 0 <= i + step * n < length]
            scores = np.einsum("bd,bjd->bj", v["q"][:, h, i], v["k"][:, h, visible]) / 8
            out[:, h, i] = np.einsum("bj,bjd->bd", softmax(scores), v["v"][:, h, visible])
    return (out,)


def _batch_norm(x: Any) -> tuple[Any, Any, Any]:
    mean, variance = (f(x, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    return (x - mean) / np.sqrt(variance + 1e-5), mean, variance


def _training(v: Given) -> tuple[Any, ...]:
    normal, mean, variance = _batch_norm(v["x"])
    gain, bias = (v[n][:, None, None] for n in ("gain", "bias"))
    running = (
        0.9 * v[n] + 0.1 * now.ravel() for n, now in (("mean", mean), ("variance", variance))
    )
    return (normal * gain + bias, *running)


def _written_out(v: Given) -> tuple[Any, ...]:
    normal, mean, variance = _batch_norm(v["x"])
    return normal * v["gain"] + v["bias"], mean, variance


def _gelu(x: Any) -> Any:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _mlp(v: Given) -> tuple[Any, ...]:
    return (_gelu(v["x"] @ v["up"] + v["up_bias"]) @ v["down"] + v["down_bias"],)


def _swiglu(v: Given) -> tuple[Any, ...]:
    gate = v["x"] @ v["gate"]
    return ((gate / (1 + np.exp(-gate)) * (v["x"] @ v["up"])) @ v["down"],)


def _routing(v: Given) -> tuple[Any, ...]:
    scores = v["x"] @ v["gate"]
    order = np.argsort(-scores, -1, kind="stable")[:, : 2 if scores.shape[1] == 8 else 8]
    # shares of the chosen alone: the rest of the softmax cancels
    return softmax(np.take_along_axis(scores, order, -1)), order


def convolve(x: Any, filters: Any, group: int = 1, stride: int = 1) -> Any:
    """Returns a convolution, padded by half of the window, as one matmul for each place in the
    window."""
    size, edge = filters.shape[-1], filters.shape[-1] // 2
    height = x.shape[-1]
    x = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    total: Any = 0
    for a in range(size):
        for b in range(size):
            part = x[:, :, a : a + height : stride, b : b + height : stride]
            if group == 1:
                total = total + np.einsum("bchw,oc->bohw", part, filters[:, :, a, b])
            else:
                total = total + part * filters[:, 0, a, b][None, :, None, None]
    return total


def _folded(v: Given, number: int, group: int = 1, stride: int = 1) -> Callable[[Any], Any]:
    """Returns the convolution by filter `number` - 1, followed by its batch norm."""

    def apply(x: Any) -> Any:
        x = convolve(x, v[f"filter{number - 1}"], group, stride)
        gain, bias, mean, variance = (
            v[f"{n}{number}"][:, None, None] for n in ("gain", "bias", "mean", "variance")
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * gain + bias

    return apply


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


def _residual(v: Given) -> tuple[Any, ...]:
    return (_relu(v["x"] + _folded(v, 2)(_relu(_folded(v, 1)(v["x"])))),)


def _separable(v: Given) -> tuple[Any, ...]:
    """Returns a separable convolution; its smallest size has a stride of 2."""
    channels = v["x"].shape[1]
    return (_relu(_folded(v, 2)(_relu(_folded(v, 1, channels, stride=2)(v["x"])))),)


def _inverted(v: Given) -> tuple[Any, ...]:
    wide = 6 * v["x"].shape[1]
    x = np.clip(_folded(v, 1)(v["x"]), 0, 6)
    x = np.clip(_folded(v, 2, wide)(x), 0, 6)
    return (v["x"] + _folded(v, 3)(x),)


def _mesh(v: Given) -> tuple[Any, ...]:
    out = []
    for face, neighbours in enumerate(v["near"]):
        a, b, c = (v["x"][n] for n in neighbours)
        features = v["x"][face]
        among = abs(a - b) + abs(b - c) + abs(c - a)
        differences = abs(features - a) + abs(features - b) + abs(features - c)
        parts = (features, a + b + c, among, differences)
        out.append(sum(p @ v[f"w{n}"] for n, p in enumerate(parts)))
    return (np.array(out),)


def _gat(v: Given) -> tuple[Any, ...]:
    h = v["x"] @ v["weight"]
    out = np.zeros_like(h)
    for node in range(len(h)):
        neighbours = v["source"][v["target"] == node]
        if len(neighbours):
            scores = h[neighbours] @ v["left"][:, 0] + h[node] @ v["right"][:, 0]
            out[node] = softmax(np.where(scores > 0, scores, 0.2 * scores)) @ h[neighbours]
    return (out,)


def _softras(v: Given) -> tuple[Any, ...]:
    """Returns the soft silhouettes of triangles.

    The distance of a point from a segment is the least of the distances from its ends and, if the
    foot lies on the segment, from its line. A point is inside if three areas add up to the whole.
    """
    line = (np.arange(32) + 0.5) / 16 - 1
    points = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    out = []
    for corners in v["corners"]:
        nearest = np.full(len(points), np.inf)
        areas = np.zeros(len(points))
        for n in range(3):
            a, b = corners[n], corners[(n + 1) % 3]
            edge = b - a
            cross = edge[0] * (points - a)[:, 1] - edge[1] * (points - a)[:, 0]
            foot = (points - a) @ edge / (edge @ edge)
            ends = np.minimum(*(((points - end) ** 2).sum(-1) for end in (a, b)))
            on = (foot >= 0) & (foot <= 1)
            nearest = np.minimum(nearest, np.where(on, cross**2 / (edge @ edge), ends))
            areas += abs(cross)
        a, b, c = corners
        doubled_area = abs((b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0])
        signed = np.where(areas <= doubled_area * (1 + 1e-9), nearest, -nearest)
        out.append((1 / (1 + np.exp(-20 * signed))).reshape(32, 32))
    return (np.array(out),)


def _bag(v: Given) -> tuple[Any, ...]:
    return (np.array([sum(v["table"][n] for n in row) for row in v["which"]]),)


def _bags(v: Given) -> tuple[Any, ...]:
    sums = [_bag({"table": v[f"table{n}"], "which": v[f"which{n}"]})[0] for n in range(26)]
    return (np.concatenate(sums, 1),)


def _sum_norm(v: Given) -> tuple[Any, ...]:
    return v["x"] + v["y"], layer_norm(v["x"] + v["y"], v)


FORMULAS: Mapping[str, Formula] = {
    "ALiBi (BLOOM)": _alibi,
    "causal (GPT-2)": lambda v: (attention(v, 1 / 8),),
    "sliding window (Mistral)": lambda v: (attention(v, 128**-0.5, window=256),),
    "normalised keys (Swin v2)": _normalised,
    "tanh cap (Gemma 2)": lambda v: (attention(v, 1 / 16, lambda s: 50 * np.tanh(s / 50)),),
    "QK-norm, rotary (Gemma 3)": _qk_norm(512),
    "QK-norm, rotary (Qwen 3)": _qk_norm(None),
    "MHA (oneDNN)": _mha,
    "GQA decode, cache grows": _appending,
    "band attention (Longformer)": _longformer,
    "q k^T": lambda v: (np.einsum("bhid,bhjd->bhij", v["q"], v["k"]),),
    "LayerNorm": lambda v: (layer_norm(v["x"], v),),
    "LayerNorm of a sum": _sum_norm,
    "RMSNorm": lambda v: (rms(v["x"]) * v["gain"],),
    "BatchNorm in training": _training,
    "BatchNorm in training, written out": _written_out,
    "softmax": lambda v: (softmax(v["x"]),),
    "log-softmax": lambda v: (np.log(softmax(v["x"])),),
    "MLP, GELU (BERT)": _mlp,
    "MLP, SwiGLU (Llama)": _swiglu,
    "MoE routing": _routing,
    "one row": lambda v: (np.einsum("mk,kn->mn", v["x"], v["weight"]),),
    "residual block (ResNet 18)": _residual,
    "depthwise separable (MobileNet)": _separable,
    "inverted residual (MobileNetV2)": _inverted,
    "mesh convolution (SubdivNet)": _mesh,
    "graph attention (GAT)": _gat,
    "faces to pixels (SoftRas)": _softras,
    "gather": lambda v: (np.array([v["table"][n] for n in v["which"]]),),
    "embedding bag": _bag,
    "embedding bags (DLRM)": _bags,
    "tanh": lambda v: (np.tanh(v["x"]),),
    "transpose, relu": lambda v: (_relu(np.einsum("abcd->dcba", v["x"])),),
}
