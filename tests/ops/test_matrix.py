"""The op matrix: every row, on each of its samples, is checked in three ways.

Inference gives the types of the results. The expression agrees with the NumPy reference within the
row's tolerance class. The reference agrees with ONNX Runtime if ONNX has the op.
"""

from __future__ import annotations

import numpy as np
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.op import OpSpec, Tolerance, Trait
from tcc.ops import OPS

from tests.lib.op_matrix import oracle, structure_models, tolerance
from tests.lib.op_matrix.cases import CASES, SYMBOLIC_CASES, Case, check, each, reference, symbolic

from .samples import Sample

# Rows and samples for which ONNX Runtime deviates from the operator's text or leaves the result
# undefined.
DEPARTS = {
    "cast-special-f32": "float to integer out of range is left open by ONNX",
    "mean-three_f64-f64": "no kernel, and onnx.reference adds without broadcasting",
    "to_narrow-f8e5m2_0-f32": "ONNX Runtime gives NaN just beyond the largest value, not infinity",
    "quantize_linear-precision_f16-f32": "ONNX Runtime divides in f32 whatever the precision",
    "quantize_linear-precision_bf16-f32": "ONNX Runtime divides in f32 whatever the precision",
    "string_split-dots-string": "ONNX Runtime cuts an empty string into nothing, ONNX into one",
    "string_split-once-string": "ONNX Runtime cuts an empty string into nothing, ONNX into one",
    **structure_models.DEPARTS,
}
# Rows whose first operand is a batch of images or signals.
BATCHED = ("conv", "conv_transpose", "col2im", "group_normalization")


@each(CASES)
def test_inference_gives_the_types_of_the_results(case: Case) -> None:
    types = case.op.infer(case.types, case.sample.attrs)
    results = case.op.reference(case.operands, case.sample.attrs)
    assert [t.static_shape for t in types] == [r.shape for r in results]
    assert [t.dtype.carrier for t in types] == [r.dtype for r in results]


@each(CASES)
def test_expression_agrees_with_reference(case: Case) -> None:
    if case.op.expr is None:
        assert case.op.call or Trait.OPAQUE in case.op.traits
        return
    expr = case.op.expr(case.types, case.sample.attrs)
    assert expr.types == tuple(case.op.infer(case.types, case.sample.attrs))
    actual = evaluate_expr(expr, case.operands)
    check(case, actual, reference(case), case.op.tolerance)


@each([c for c in CASES if c.op.name in BATCHED])
def test_references_take_no_images(case: Case) -> None:
    first, *other_operands = case.operands
    assert first is not None
    (some,) = case.op.reference(case.operands, case.sample.attrs)
    (none,) = case.op.reference((first[:0], *other_operands), case.sample.attrs)
    assert none.shape == (0, *some.shape[1:])


@each(SYMBOLIC_CASES)
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


@each(ORACLE_CASES)
def test_reference_agrees_with_onnx_runtime(case: Case) -> None:
    node = node_of(case.op, case.sample)
    assert node is not None
    types = case.op.infer(case.types, case.sample.attrs)
    expected = tuple(oracle.run(node, types))
    exact = case.op.tolerance is Tolerance.EXACT
    for actual, reference_array, type in zip(reference(case), expected, types, strict=True):
        # ONNX Runtime approximates functions and accumulates halves in its own ways.
        relative = {"f16": 4e-3, "bf16": 3e-2}.get(type.dtype.name, 1e-5)
        limit = 0.0 if exact else relative
        tolerance.check(actual, reference_array, type.dtype, lambda v, r=limit: r * (1 + np.abs(v)))


def test_every_oracle_model_is_of_a_row() -> None:
    assert [name for name in (*oracle.MODELS, *structure_models.MODELS) if name not in OPS] == []


def test_every_departure_is_of_a_sample() -> None:
    assert DEPARTS.keys() <= {case.name for case in CASES}
