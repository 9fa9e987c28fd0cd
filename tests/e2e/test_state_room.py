"""States with several heads: caches [batch, head, past, width] grow inside larger arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc.errors import UserError
from tcc.runtime.module import Module

from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

node = helper.make_node
HEADS, KEY_HEADS, WIDTH, LAYERS = 4, 2, 8, 2
MODEL = HEADS * WIDTH
CAPACITY = 24
PATTERN = {"past_key_values.*.*": "present.*.*"}
CACHES = [f"{n}.{kind}" for n in range(LAYERS) for kind in ("key", "value")]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decoder(batch: int | str = "batch", past: int | str = "past") -> onnx.ModelProto:
    """Returns attention layers as Hugging Face exports them; `mask` is added to the scores."""
    constants: dict[str, Array] = {
        "rows": np.array([0, 0, HEADS, WIDTH]),
        "key_rows": np.array([0, 0, KEY_HEADS, WIDTH]),
        "flat": np.array([0, 0, MODEL]),
        "shared": np.array([h * KEY_HEADS // HEADS for h in range(HEADS)]),
        "scale": np.array(WIDTH**-0.5, np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def heads(source: str, layer: int, kind: str, rows: str) -> str:
        width = MODEL if rows == "rows" else KEY_HEADS * WIDTH
        name = f"{layer}.{kind}"
        constants[f"w.{name}"] = normal(len(constants), MODEL, width) / np.float32(MODEL**0.5)
        nodes.extend(
            [
                node("MatMul", [source, f"w.{name}"], [f"{name}.flat"]),
                node("Reshape", [f"{name}.flat", rows], [f"{name}.rows"]),
                node("Transpose", [f"{name}.rows"], [f"{name}.heads"], perm=[0, 2, 1, 3]),
            ]
        )
        return f"{name}.heads"

    x = "x"
    for layer in range(LAYERS):
        query = heads(x, layer, "query", "rows")
        for kind in ("key", "value"):
            name = f"{layer}.{kind}"
            new = heads(x, layer, kind, "key_rows")
            pair = [f"past_key_values.{name}", new]
            nodes.append(node("Concat", pair, [f"present.{name}"], axis=2))
            nodes.append(node("Gather", [f"present.{name}", "shared"], [f"{name}.all"], axis=1))
        at = f"{layer}."
        nodes += [
            node("Transpose", [f"{at}key.all"], [f"{at}turned"], perm=[0, 1, 3, 2]),
            node("MatMul", [query, f"{at}turned"], [f"{at}products"]),
            node("Mul", [f"{at}products", "scale"], [f"{at}scaled"]),
            node("Add", [f"{at}scaled", "mask"], [f"{at}scores"]),
            node("Softmax", [f"{at}scores"], [f"{at}shares"], axis=-1),
            node("MatMul", [f"{at}shares", f"{at}value.all"], [f"{at}mixed"]),
            node("Transpose", [f"{at}mixed"], [f"{at}tokens"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"{at}tokens", "flat"], [f"{at}joined"]),
            node("Add", [x, f"{at}joined"], [f"{at}y"]),
        ]
        x = f"{at}y"
    nodes.append(node("Identity", [x], ["y"]))
    cache = [batch, KEY_HEADS, past, WIDTH]
    return model_of(
        nodes,
        [
            value("x", FLOAT, [batch, "seq", MODEL]),
            value("mask", FLOAT, ["seq", None]),
            *(value(f"past_key_values.{n}", FLOAT, cache) for n in CACHES),
        ],
        [
            value("y", FLOAT, [batch, "seq", MODEL]),
            *(value(f"present.{n}", FLOAT, [batch, KEY_HEADS, None, WIDTH]) for n in CACHES),
        ],
        constants,
    )


def causal(rows: int, total: int) -> Array:
    """Returns the mask of `rows` new tokens after `total - rows` old tokens."""
    places = np.arange(total)[None, :] > np.arange(total - rows, total)[:, None]
    return np.where(places, np.float32(-1e9), np.float32(0))


@dataclass
class Oracle:
    """ONNX Runtime with caches that grow by copies."""

    model: onnx.ModelProto
    batch: int
    caches: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner = session(self.model)
        self.keep(0)

    def keep(self, rows: int) -> None:
        empty = np.zeros((self.batch, KEY_HEADS, 0, WIDTH), np.float32)
        self.caches = {n: self.caches.get(n, empty)[:, :, :rows] for n in CACHES}

    def run(self, x: Array, mask: Array) -> dict[str, Array]:
        feeds = {f"past_key_values.{n}": array for n, array in self.caches.items()}
        result = expected(self.runner, {"x": x, "mask": mask, **feeds})
        self.caches = {n: result[f"present.{n}"] for n in CACHES}
        return result


def step(module: Module, oracle: Oracle, memory: Mapping[str, Any], length: int, rows: int) -> None:
    """Runs `rows` tokens after `length` old tokens, and compares all outputs and the memory."""
    x, total = normal(length * 100 + rows, oracle.batch, rows, MODEL), length + rows
    mask = causal(rows, total)
    views = {f"past_key_values.{n}": memory[n][:, :, :total] for n in CACHES}
    kind = type(memory[CACHES[0]])
    plain: Callable[[Array], Any] = (lambda a: a) if kind is np.ndarray else _tensor
    result = module.run({"x": plain(x), "mask": plain(mask), **views})
    reference = oracle.run(x, mask)
    assert_agree({name: np.asarray(array) for name, array in result.items()}, reference)
    for name in CACHES:
        assert result[f"present.{name}"] is views[f"past_key_values.{name}"]
        array = np.asarray(memory[name])
        view = np.asarray(views[f"past_key_values.{name}"])
        np.testing.assert_array_equal(array[:, :, :total], view)
        assert np.isnan(array[:, :, total:]).all()


def _tensor(array: Array) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


def caches(batch: int, kind: str = "numpy") -> dict[str, Any]:
    arrays = {n: np.full((batch, KEY_HEADS, CAPACITY, WIDTH), np.nan, np.float32) for n in CACHES}
    return arrays if kind == "numpy" else {n: _tensor(array) for n, array in arrays.items()}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return decoder()


@pytest.fixture(scope="module")
def module(model: onnx.ModelProto) -> Module:
    return tcc.compile(model, state=PATTERN, jobs=1)


@pytest.fixture(scope="module")
def bucketed(model: onnx.ModelProto) -> Module:
    """Compiles the model with buckets for a single new token and for one batch."""
    return tcc.compile(model, state=PATTERN, buckets={"seq": [1], "batch": [1]}, jobs=1)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("batch", "prompt"), [(1, 1), (1, 5), (2, 12)])
def test_caches_grow_inside_larger_arrays(
    model: onnx.ModelProto, module: Module, batch: int, prompt: int, kind: str
) -> None:
    """One artifact takes prompts of any length with empty caches, and 7 steps after a prefix."""
    oracle, memory = Oracle(model, batch), caches(batch, kind)
    step(module, oracle, memory, 0, prompt)
    prefix = -(-prompt // 2)
    oracle.keep(prefix)
    for array in memory.values():
        array[:, :, prefix:] = np.nan
    for length in range(prefix, prefix + 7):
        step(module, oracle, memory, length, 1)
    step(module, oracle, memory, prefix + 7, 3)


def test_buckets_share_the_larger_arrays(model: onnx.ModelProto, bucketed: Module) -> None:
    for batch in (1, 2):
        oracle, memory = Oracle(model, batch), caches(batch)
        for length, rows in ((0, 3), (3, 1), (4, 1), (5, 2)):
            step(bucketed, oracle, memory, length, rows)


def test_the_last_row_of_the_capacity_is_used(model: onnx.ModelProto, module: Module) -> None:
    oracle, memory = Oracle(model, 1), caches(1)
    step(module, oracle, memory, 0, CAPACITY - 1)
    step(module, oracle, memory, CAPACITY - 1, 1)
    views = {f"past_key_values.{n}": memory[n][:, :, : CAPACITY + 1] for n in CACHES}
    feeds = {"x": normal(0, 1, 1, MODEL), "mask": causal(1, CAPACITY + 1), **views}
    before = {n: array.copy() for n, array in memory.items()}
    with pytest.raises(UserError, match=r"mask.1 must be 1 or past\+seq.*\(25, 24\)"):
        module.run(feeds)
    for name in CACHES:
        np.testing.assert_array_equal(memory[name], before[name])


def test_row_major_caches_fit_exactly(model: onnx.ModelProto, module: Module) -> None:
    oracle = Oracle(model, 1)
    x, mask = normal(1, 1, 4, MODEL), causal(4, 4)
    shape = 1, KEY_HEADS, 4, WIDTH
    arrays = {f"past_key_values.{n}": np.zeros(shape, np.float32) for n in CACHES}
    assert_agree(module.run({"x": x, "mask": mask, **arrays}), oracle.run(x, mask))


def _turned(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _far(array: Array) -> Array:
    """Returns a view whose heads are 2**62 bytes apart, so that its span needs more than 64
    bits."""
    strides = (0, 1 << 62, *array.strides[2:])
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_turned, "the front of a row-major array along axis 2, because it is updated in place"),
        (lambda a: a[:, :, ::-1], "the front of a row-major array along axis 2"),
        (lambda a: a[..., ::2], "expected shape"),
        (np.ascontiguousarray, "its capacity along dimension 2 must be that of"),
        (_far, "the front of a row-major array along axis 2"),
    ],
    ids=["rows outside", "backwards", "columns", "other capacity", "beyond 64 bits"],
)
def test_states_with_wrong_strides_are_refused(
    module: Module, change: Callable[[Array], Array], message: str
) -> None:
    views = {f"past_key_values.{n}": array[:, :, :4] for n, array in caches(1).items()}
    views["past_key_values.1.key"] = change(views["past_key_values.1.key"])
    feeds = {"x": normal(1, 1, 4, MODEL), "mask": causal(4, 4), **views}
    with pytest.raises(UserError, match=message):
        module.run(feeds)
    assert np.isnan(views["past_key_values.0.key"]).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_caches_of_half_the_bytes(model: onnx.ModelProto, dtype: str) -> None:
    """Stored rows are the oracle's rows, rounded once; outputs differ by this rounding only."""
    torch = pytest.importorskip("torch")
    element = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    module = tcc.compile(model, state=PATTERN, state_type=dtype, jobs=1)
    assert {port.dtype for port in module.inputs[2:]} == {dtype}
    shape = 1, KEY_HEADS, CAPACITY, WIDTH
    memory = {n: torch.full(shape, np.nan, dtype=element) for n in CACHES}
    oracle, length = Oracle(model, 1), 0
    for rows in (5, 1, 1, 2):
        total = length + rows
        x, mask = normal(total, 1, rows, MODEL), causal(rows, total)
        views = {f"past_key_values.{n}": memory[n][:, :, :total] for n in CACHES}
        result = module.run({"x": torch.from_numpy(x), "mask": torch.from_numpy(mask), **views})
        reference = oracle.run(x, mask)
        assert_agree({"y": result["y"].numpy()}, {"y": reference["y"]}, 2e-2)
        for name in ("0.key", "0.value"):  # later layers read rounded rows
            cache = memory[name][:, :, :total].float().numpy()
            rounded = torch.from_numpy(reference[f"present.{name}"]).to(element).float().numpy()
            np.testing.assert_allclose(cache, rounded, rtol=2.0**-7, atol=1e-6)
            assert np.mean(cache != rounded) < 0.05  # sums in another order may round up or down
        length = total
