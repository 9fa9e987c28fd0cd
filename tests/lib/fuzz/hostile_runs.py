"""Hostile arrays for valid artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .hostile_case import Action, Array, Case, Outcome, text_model, writer

_BIG = np.iinfo(np.int64)


def cases() -> Iterator[Case]:
    yield from _indices()
    yield from _arithmetic()
    yield from _shapes()
    yield from _sizes()


def _run(name: str, outcome: Outcome, text: str, feeds: Mapping[str, Any], opset: int = 21) -> Case:
    arrays = {key: np.asarray(value) for key, value in feeds.items()}
    return Case(f"run-{name}", outcome, writer(lambda: text_model(text, opset)), Action.RUN, arrays)


def _ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- indices -------------------------------------------------------------------------------------


def _indices() -> Iterator[Case]:
    gathers = {
        "gather": ("int64[2] i", "Gather (x, i)", [0, 1], (4, 3)),
        "gather-axis": ("int64[2] i", "Gather <axis = 1> (x, i)", [0, 1], (3, 4)),
        "gather-elements": ("int64[1,3] i", "GatherElements (x, i)", [[0, 1, 2]], (4, 3)),
        "gather-nd": ("int64[2,1] i", "GatherND (x, i)", [[0], [1]], (4, 3)),
    }
    for name, (port, body, good, shape) in gathers.items():
        sizes = ",".join(map(str, shape))
        text = f"g (float[{sizes}] x, {port}) => (float[..] y) {{ y = {body} }}".replace("[..]", "")
        text = text.replace("(float y)", "(float[a,b] y)")
        for label, bad in (("far", 4), ("below", -5), ("largest", _BIG.max), ("least", _BIG.min)):
            at = np.array(good, np.int64)
            at.reshape(-1)[-1] = bad
            yield _run(f"{name}-{label}", Outcome.REFUSED, text, {"x": _ramp(*shape), "i": at})
        at = np.array(good, np.int64)
        at.reshape(-1)[-1] = -4
        yield _run(f"{name}-last", Outcome.WORKS, text, {"x": _ramp(*shape), "i": at})
    computed = (
        "g (float[4,3] x, int64[2] i) => (float[a,b] y) "
        "{ k = Add (i, i) r = Neg (x) y = Gather (r, k) }"
    )
    yield _run(
        "gather-computed", Outcome.REFUSED, computed, {"x": _ramp(4, 3), "i": np.array([1, 2])}
    )
    narrow = "g (float[4,3] x, int32[2] i) => (float[a,b] y) { y = Gather (x, i) }"
    at = np.array([0, 9], np.int32)
    yield _run("gather-narrow", Outcome.REFUSED, narrow, {"x": _ramp(4, 3), "i": at})
    hollow = "g (float[n,3] x, int64[2] i) => (float[a,b] y) { y = Gather (x, i) }"
    feeds = {"x": _ramp(0, 3), "i": np.array([0, 0])}
    yield _run("gather-hollow", Outcome.REFUSED, hollow, feeds)
    scatters = {
        "scatter-elements": (
            "int64[1,3] i, float[1,3] u",
            "ScatterElements (x, i, u)",
            [[0, 1, 9]],
        ),
        "scatter-nd": ("int64[1,1] i, float[1,3] u", "ScatterND (x, i, u)", [[9]]),
    }
    for name, (ports, body, bad) in scatters.items():
        text = f"g (float[4,3] x, {ports}) => (float[4,3] y) {{ y = {body} }}"
        feeds = {"x": _ramp(4, 3), "i": np.array(bad), "u": _ramp(1, 3)}
        yield _run(f"{name}-far", Outcome.REFUSED, text, feeds)
        out_of_range = {**feeds, "i": np.where(np.array(bad) == 9, _BIG.min, bad)}
        yield _run(f"{name}-least", Outcome.REFUSED, text, out_of_range)
    one_hot = (
        "g (int64[3] i, float[2] v) => (float[3,4] y) "
        "{ d = Constant <value = int64 {4}> () y = OneHot (i, d, v) }"
    )
    feeds = {"i": np.array([_BIG.min, 9, _BIG.max]), "v": np.array([0, 1], np.float32)}
    yield _run("one-hot-outside", Outcome.WORKS, one_hot, feeds)
    loop = (
        "g (float[4,3] x, int64 n) => (float[3] y) { c = Constant <value = bool {1}> () "
        "z = Constant <value = float[3] {0.0, 0.0, 0.0}> () "
        "y = Loop (n, c, z) <body = b (int64 i, bool d, float[3] s) => (bool e, float[3] t) "
        "{ e = Identity (d) r = Gather (x, i) t = Add (s, r) }> }"
    )
    yield _run("gather-in-loop", Outcome.REFUSED, loop, {"x": _ramp(4, 3), "n": np.array(9)})
    yield _run("gather-in-loop-good", Outcome.WORKS, loop, {"x": _ramp(4, 3), "n": np.array(4)})


# ---- arithmetic ----------------------------------------------------------------------------------


def _arithmetic() -> Iterator[Case]:
    least = {"int64": _BIG.min, "int32": np.iinfo(np.int32).min, "int8": -128}
    for kind, value in least.items():
        for op in ("Div", "Mod"):
            text = f"g ({kind}[3] a, {kind}[3] b) => ({kind}[3] y) {{ y = {op} (a, b) }}"
            a, b = np.array([7, value, value], kind), np.array([0, -1, 0], kind)
            yield _run(f"{op.lower()}-{kind}", Outcome.WORKS, text, {"a": a, "b": b})
    for label, tail in (("left", "LEFT"), ("right", "RIGHT")):
        text = (
            "g (uint32[3] a, uint32[3] b) => (uint32[3] y) "
            f'{{ y = BitShift <direction = "{tail}"> (a, b) }}'
        )
        feeds = {"a": np.array([1, 2, 3], np.uint32), "b": np.array([32, 99, 2**32 - 1], np.uint32)}
        yield _run(f"shift-{label}", Outcome.WORKS, text, feeds)
    for kind in ("int64", "int32", "int8", "uint8", "uint64", "bool"):
        number = {"int64": 7, "int32": 6, "int8": 3, "uint8": 2, "uint64": 13, "bool": 9}[kind]
        text = f"g (float[6] x) => ({kind}[6] y) {{ y = Cast <to = {number}> (x) }}"
        feeds = {"x": np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -1], np.float32)}
        yield _run(f"cast-{kind}", Outcome.WORKS, text, feeds)
    power = "g (int64[3] a, int64[3] b) => (int64[3] y) { y = Pow (a, b) }"
    feeds = {"a": np.array([0, 2, _BIG.min]), "b": np.array([-1, 1 << 40, 3])}
    yield _run("pow", Outcome.WORKS, power, feeds)
    scale = "g (float[3] x, float s) => (uint8[3] y) { y = QuantizeLinear (x, s) }"
    feeds = {"x": np.array([np.nan, np.inf, 1], np.float32), "s": np.array(0, np.float32)}
    yield _run("quantize-scale-0", Outcome.WORKS, scale, feeds)
    absolute = "g (int64[2] a) => (int64[2] y) { n = Neg (a) y = Abs (n) }"
    yield _run("abs-least", Outcome.WORKS, absolute, {"a": np.array([_BIG.min, -1])})


# ---- shapes --------------------------------------------------------------------------------------


def _shapes() -> Iterator[Case]:
    text = "g (float[n,3] x, float[n,3] w) => (float[n,3] y) { y = Add (x, w) }"
    good = _ramp(2, 3)
    yield _run("shape-good", Outcome.WORKS, text, {"x": good, "w": good})
    yield _run("shape-zero", Outcome.WORKS, text, {"x": _ramp(0, 3), "w": _ramp(0, 3)})
    yield _run(
        "shape-strided", Outcome.WORKS, text, {"x": np.asfortranarray(good), "w": good[::-1]}
    )
    bad: dict[str, Array] = {
        "rank": _ramp(6),
        "rank-more": _ramp(1, 2, 3),
        "size": _ramp(2, 4),
        "disagree": _ramp(5, 3),
        "type": good.astype(np.float64),
        "type-int": good.astype(np.int32),
        "type-bool": good.astype(np.bool_),
        "type-big-endian": good.astype(">f4"),
        "type-object-free": good.astype("S4"),
        "type-complex": good.astype(np.complex64),
        "scalar": np.array(1, np.float32),
    }
    for name, array in bad.items():
        yield _run(f"shape-{name}", Outcome.REFUSED, text, {"x": good, "w": array})
    reshape = "g (float[n] x, int64[k] s) => (float[a,b] y) { y = Reshape (x, s) }"
    reshape = reshape.replace("[k]", "[2]")
    for label, sizes in (
        ("count", [5, 5]),
        ("huge", [1 << 40, 1 << 40]),
        ("negative", [-3, -2]),
        ("wraps", [1 << 32, 1 << 32]),
    ):
        feeds = {"x": _ramp(6), "s": np.array(sizes)}
        yield _run(f"reshape-{label}", Outcome.REFUSED, reshape, feeds)
    yield _run("reshape-good", Outcome.WORKS, reshape, {"x": _ramp(6), "s": np.array([2, 3])})


# ---- data-dependent sizes ------------------------------------------------------------------------


def _sizes() -> Iterator[Case]:
    """Yields runs that need memory according to their inputs."""
    expand = "g (float[1] x, int64[1] s) => (float[n] y) { y = Expand (x, s) }"
    for label, size in (("terabytes", 1 << 42), ("wraps", 1 << 62), ("negative", -7)):
        feeds = {"x": _ramp(1), "s": np.array([size])}
        yield _run(f"expand-{label}", Outcome.REFUSED, expand, feeds)
    fill = "g (int64[2] s) => (float[a,b] y) { c = ConstantOfShape (s) y = Cos (c) }"
    for label, sizes in (("bomb", [1 << 30, 1 << 30]), ("negative", [-1, 4])):
        yield _run(f"fill-{label}", Outcome.REFUSED, fill, {"s": np.array(sizes)})
    span = "g (int64 a, int64 b, int64 d) => (int64[n] y) { y = Range (a, b, d) }"
    for label, values in (("bomb", (0, 1 << 62, 1)), ("step-0", (0, 5, 0))):
        feeds = dict(zip("abd", map(np.array, values), strict=True))
        yield _run(f"range-{label}", Outcome.REFUSED, span, feeds)
    extremes = {"a": np.array(_BIG.min), "b": np.array(_BIG.max), "d": np.array(1)}
    yield _run("range-wraps", Outcome.REFUSED, span, extremes)
    tile = "g (float[4] x, int64[1] r) => (float[n] y) { y = Tile (x, r) }"
    for label, times in (("bomb", 1 << 40), ("negative", -1)):
        feeds = {"x": _ramp(4), "r": np.array([times])}
        yield _run(f"tile-{label}", Outcome.REFUSED, tile, feeds)
    top = "g (float[4] x, int64[1] k) => (float[n] y) { y, i = TopK (x, k) }"
    for label, k in (("many", 9), ("negative", -1), ("huge", _BIG.max)):
        feeds = {"x": _ramp(4), "k": np.array([k])}
        yield _run(f"topk-{label}", Outcome.REFUSED, top, feeds)
    hot = "g (int64[2] i, int64 d, float[2] v) => (float[a,b] y) { y = OneHot (i, d, v) }"
    for label, depth in (("bomb", 1 << 45), ("negative", -3)):
        feeds = {"i": np.array([0, 1]), "d": np.array(depth), "v": _ramp(2)}
        yield _run(f"one-hot-{label}", Outcome.REFUSED, hot, feeds)
    grow = (
        "g (float[1] x, int64 n) => (float[m] y) { c = Constant <value = bool {1}> () "
        "y = Loop (n, c, x) <body = b (int64 i, bool d, float[k] s) => (bool e, float[l] t) "
        "{ e = Identity (d) t = Concat <axis = 0> (s, s) }> }"
    )
    yield _run("loop-doubling", Outcome.REFUSED, grow, {"x": _ramp(1), "n": np.array(60)})
