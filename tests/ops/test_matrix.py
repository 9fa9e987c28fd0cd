"""The op matrix: every row on each of its samples, three ways.

Inference gives the types of the results; the expression agrees with the NumPy reference within the
row's tolerance class; and the reference agrees with ONNX Runtime where ONNX has the op.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tcc.ir.evaluate_expr import evaluate_expr
from tcc.ir.graph import carrier
from tcc.ir.index import Index, as_int, symbol
from tcc.ir.op import OpSpec, Sample, Tolerance, Trait
from tcc.ir.types import BF16, F32, DType, TensorType, dtype_of, tensor
from tcc.ops import OPS

from . import oracle, structure_models, tolerance

Array = np.ndarray[Any, np.dtype[Any]]

# Rows and samples where ONNX Runtime departs from the operator's text or leaves the result open.
DEPARTS = {
    "cast-special-f32": "float to integer out of range is left open by ONNX",
    "mean-three_f64-f64": "no kernel, and onnx.reference adds without broadcasting",
    "mean_variance_normalization-23_f64-f64": "no kernel, and onnx.reference mixes types",
    "lrn-4_f32-f32": "ONNX Runtime takes odd sizes only",
    "lrn-5_f64-f64": "no kernel, and onnx.reference leaves out the last neighbour",
    "reduce_log_sum_exp-i32-i32": "ONNX Runtime rounds the exponentials to integers",
    **structure_models.DEPARTS,
}


@dataclass(frozen=True)
class Case:
    """One sample of one op; f32 operands count as bf16 where `half`."""

    op: OpSpec
    sample: Sample
    half: bool = False

    @property
    def name(self) -> str:
        first = next((a for a in self.sample.inputs if a is not None), None)
        kind = "bf16" if self.half else "none" if first is None else dtype_of(first).name
        return f"{self.op.name}-{self.sample.label}-{kind}"

    @property
    def operands(self) -> tuple[Array | None, ...]:
        return tuple(None if a is None else carrier(a, self.dtype(a)) for a in self.sample.inputs)

    def dtype(self, array: Array) -> DType:
        dtype = dtype_of(array)
        return BF16 if self.half and dtype is F32 else dtype

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        return tuple(
            None if a is None else tensor(self.dtype(a), *a.shape) for a in self.sample.inputs
        )


def cases() -> Iterator[Case]:
    for op in OPS.values():
        rng = np.random.default_rng(zlib.crc32(op.name.encode()))
        for sample in op.samples(rng):
            yield Case(op, sample)
            floats = [a for a in sample.inputs if a is not None and a.dtype.kind == "f"]
            if BF16 in op.dtypes and floats and all(a.dtype == np.float32 for a in floats):
                yield Case(op, sample, half=True)


CASES = tuple(cases())
IDS = [case.name for case in CASES]


def reference(case: Case) -> tuple[Array, ...]:
    types = case.op.infer(case.types, case.sample.attrs)
    results = case.op.reference(case.operands, case.sample.attrs)
    with np.errstate(over="ignore"):
        return tuple(carrier(r, t.dtype) for r, t in zip(results, types, strict=True))


def scale(case: Case, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Sums of absolute terms: the reference on absolute values, at least 1 and the result."""
    absolute = [np.abs(a) if a is not None and a.dtype.kind == "f" else a for a in case.operands]
    sums = case.op.reference(absolute, case.sample.attrs)
    return tuple(
        np.maximum(np.maximum(_finite(s), _finite(r)), 1.0) if s.dtype.kind == "f" else s
        for s, r in zip(sums, results, strict=True)
    )


def _finite(array: Array) -> Array:
    return np.asarray(np.where(np.isfinite(array), np.abs(array), 0)).astype(np.float64)


def length(case: Case) -> int:
    return max((a.size for a in case.sample.inputs if a is not None), default=1) + 4


def check(
    case: Case,
    actual: tuple[Array, ...],
    expected: tuple[Array, ...],
    kind: Tolerance,
    factor: float = 1.0,
) -> None:
    types = case.op.infer(case.types, case.sample.attrs)
    scales = scale(case, expected) if kind is Tolerance.ACCUMULATE else expected
    for a, e, t, s in zip(actual, expected, types, scales, strict=True):
        tolerance.check(
            a,
            e,
            t.dtype,
            lambda v, t=t, s=s: (
                factor * tolerance.bound(kind, v, t.dtype, np.asarray(s), length(case))
            ),
        )


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_inference_gives_the_types_of_the_results(case: Case) -> None:
    types = case.op.infer(case.types, case.sample.attrs)
    results = case.op.reference(case.operands, case.sample.attrs)
    assert [t.static_shape for t in types] == [r.shape for r in results]
    assert [t.dtype.carrier for t in types] == [r.dtype for r in results]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_expression_agrees_with_reference(case: Case) -> None:
    if case.op.expr is None:
        assert case.op.call or case.op.decompose or Trait.OPAQUE in case.op.traits
        return
    expr = case.op.expr(case.types, case.sample.attrs)
    assert expr.types == tuple(case.op.infer(case.types, case.sample.attrs))
    actual = evaluate_expr(expr, case.operands)
    check(case, actual, reference(case), case.op.tolerance)


# Rows whose attributes or rules need a known size somewhere.
STATIC = ("group_normalization-", "quantize_linear-block-", "dequantize_linear-block-")


def symbolic(types: tuple[TensorType | None, ...]) -> tuple[TensorType | None, ...]:
    """`types` with a size symbol in place of every dim above one; equal dims share a symbol."""

    def dim(size: Index) -> Index:
        known = as_int(size)
        return size if known is None or known <= 1 else symbol(f"n{known}", 1)

    return tuple(t and TensorType(t.dtype, tuple(map(dim, t.shape))) for t in types)


SYMBOLIC_CASES = tuple(
    c
    for c in CASES
    if c.op.traits & {Trait.ELEMENTWISE, Trait.REDUCTION}
    and not c.half
    and not c.name.startswith(STATIC)
)


@pytest.mark.parametrize("case", SYMBOLIC_CASES, ids=[c.name for c in SYMBOLIC_CASES])
def test_expression_holds_for_symbolic_dims(case: Case) -> None:
    assert case.op.expr is not None
    types = symbolic(case.types)
    expr = case.op.expr(types, case.sample.attrs)
    assert expr.types == tuple(case.op.infer(types, case.sample.attrs))
    sizes = {f"n{n}": n for a in case.operands if a is not None for n in a.shape}
    check(case, evaluate_expr(expr, case.operands, sizes), reference(case), case.op.tolerance)


def node_of(op: OpSpec, sample: Sample) -> oracle.OnnxNode | None:
    make = structure_models.MODELS.get(op.name)
    return make(sample) if make else oracle.node_of(op, sample)


ORACLE_CASES = tuple(
    c for c in CASES if not c.half and c.name not in DEPARTS and node_of(c.op, c.sample) is not None
)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=[c.name for c in ORACLE_CASES])
def test_reference_agrees_with_onnx_runtime(case: Case) -> None:
    made = node_of(case.op, case.sample)
    assert made is not None
    types = case.op.infer(case.types, case.sample.attrs)
    expected = tuple(oracle.run(made, types))
    exact = case.op.tolerance is Tolerance.EXACT
    for actual, wanted, type in zip(reference(case), expected, types, strict=True):
        # ONNX Runtime approximates functions and accumulates halves in its own ways.
        relative = {"f16": 4e-3, "bf16": 3e-2}.get(type.dtype.name, 1e-5)
        limit = 0.0 if exact else relative
        tolerance.check(actual, wanted, type.dtype, lambda v, r=limit: r * (1 + np.abs(v)))


def test_every_oracle_model_is_of_a_row() -> None:
    assert [name for name in (*oracle.MODELS, *structure_models.MODELS) if name not in OPS] == []


def test_every_departure_is_of_a_sample() -> None:
    assert [name for name in DEPARTS if name not in IDS] == []
