"""The framework names to which rows bind exist in the frameworks."""

from __future__ import annotations

from dataclasses import MISSING

import onnx
import pytest
from tcc.ops import OPS


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.onnx])
def test_onnx_operators_take_the_operands_and_attributes(name: str) -> None:
    op = OPS[name]
    assert op.onnx is not None
    schema = onnx.defs.get_schema(op.onnx.name)
    assert any(
        s.since_version >= op.onnx.since
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == op.onnx.name and not s.domain
    )
    assert schema.min_input <= op.arity[0]
    rename = {field: onnx_name for onnx_name, field in op.onnx.attrs}
    fields = getattr(op.attrs, "__dataclass_fields__", {})
    for field in fields:
        assert rename.get(field, field) in schema.attributes, field


def test_no_operator_is_bound_twice() -> None:
    names = [op.onnx.name for op in OPS.values() if op.onnx]
    assert len(set(names)) == len(names)


def test_defaults_are_those_of_onnx() -> None:
    for op in OPS.values():
        if op.onnx is None:
            continue
        schema = onnx.defs.get_schema(op.onnx.name)
        rename = {field: onnx_name for onnx_name, field in op.onnx.attrs}
        for field, info in getattr(op.attrs, "__dataclass_fields__", {}).items():
            declared = schema.attributes[rename.get(field, field)].default_value
            if declared.type == onnx.AttributeProto.UNDEFINED or info.default is MISSING:
                continue
            value = onnx.helper.get_attribute_value(declared)
            value_due = value.decode() if isinstance(value, bytes) else value
            default = (
                value_due if isinstance(value_due, str) else pytest.approx(value_due, rel=1e-6)
            )
            assert info.default == default, (op.name, field)
