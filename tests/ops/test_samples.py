"""Every op has samples: an entry, or samples that follow from its row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tcc.ir.op import OpSpec, Trait
from tcc.ir.types import I32, I64, tensor
from tcc.ops import OPS

from .samples import ENTRIES, samples_of

# Operands are lists or belong to several ranks, or attributes hold graphs: tests build them.
BUILT = (
    "if", "loop", "scan", "list_insert", "list_erase", "list_length", "list_at", "list_expect",
    "list_concat",
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "rank",
)  # fmt: skip


@dataclass(frozen=True)
class _Needy:
    """Attributes with a field that has no default."""

    must: int


def row(like: str, **changed: object) -> OpSpec:
    return replace(OPS[like], name="of_this_test", **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_op_has_samples(op: OpSpec) -> None:
    assert (next(samples_of(op), None) is None) == (op.name in BUILT)


def test_entries_name_ops() -> None:
    assert set(ENTRIES) <= set(OPS)


@pytest.mark.parametrize(
    ("like", "labels"),
    [
        ("softplus", "matrix scalar empty f64 f16 special"),
        ("div", "same broadcast scalar empty f64 f16 i32 i64 i8 u8 special"),
        ("max", "three_f32 three_f64 three_f16 three_i32 one empty nan"),
        ("reduce_log_sum", "keep_2 keep_0 keep_02 keep_012 keep_none drop_1 drop_all scalar empty "
         "long special f64 f16 i32 i64"),
        ("arg_max", "keep_0 keep_1 keep_2 drop_1 first_f32 first_f64 first_f16 first_i32 first_u8 "
         "last_f32 empty special"),
    ],
)  # fmt: skip
def test_new_rows_need_no_entry(like: str, labels: str) -> None:
    assert [sample.label for sample in samples_of(row(like))] == labels.split()


def test_a_reduction_of_integers_gets_integers() -> None:
    op = row("reduce_sum", dtypes=(I32, I64))
    samples = list(samples_of(op))
    assert {a.dtype.name for s in samples for a in s.inputs if a is not None} == {"int32", "int64"}
    assert "special" not in {s.label for s in samples}


@pytest.mark.parametrize("arity", [(2, 3), (3, 3), (4, 4)])
def test_elementwise_rows_of_many_operands_get_as_many(arity: tuple[int, int]) -> None:
    op = row("max", arity=arity)
    for sample in samples_of(op):
        assert arity[0] <= len(sample.inputs) <= arity[1]
        types = [tensor(op.dtypes[0], *a.shape) for a in sample.inputs if a is not None]
        op.infer(types, sample.attrs)


@pytest.mark.parametrize(
    "op",
    [
        row("max", traits=Trait(0)),
        row("softmax"),
        row("mod", attrs=_Needy),
        row("reduce_sum", attrs=_Needy, traits=Trait.REDUCTION),
    ],
    ids=["no_trait", "composite", "attribute", "reduction"],
)
def test_a_row_without_samples_is_named(op: OpSpec) -> None:
    with pytest.raises(LookupError, match="op of_this_test has no samples: add an entry"):
        samples_of(op)
