"""The names that rows bind to exist in the frameworks they name."""

from __future__ import annotations

from dataclasses import MISSING

import onnx
import pytest
from tcc.ops import OPS


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.onnx])
def test_onnx_operators_take_the_operands_and_attributes(name: str) -> None:
    op = OPS[name]
    for binding in op.onnx:
        schema = onnx.defs.get_schema(binding.name, domain=binding.domain)
        assert any(
            s.since_version >= binding.since
            for s in onnx.defs.get_all_schemas_with_history()
            if s.name == binding.name and s.domain == binding.domain
        )
        assert schema.min_input <= op.arity[0]
        rename = {field: onnx_name for onnx_name, field in binding.attrs}
        fields = getattr(op.attrs, "__dataclass_fields__", {})
        for field in fields:
            assert rename.get(field, field) in schema.attributes, field


def test_defaults_are_those_of_onnx() -> None:
    for op in OPS.values():
        for binding in op.onnx:
            schema = onnx.defs.get_schema(binding.name, domain=binding.domain)
            rename = {field: onnx_name for onnx_name, field in binding.attrs}
            for field, info in getattr(op.attrs, "__dataclass_fields__", {}).items():
                declared = schema.attributes[rename.get(field, field)].default_value
                if declared.type == onnx.AttributeProto.UNDEFINED or info.default is MISSING:
                    continue
                value = onnx.helper.get_attribute_value(declared)
                wanted = value.decode() if isinstance(value, bytes) else value
                same = wanted if isinstance(wanted, str) else pytest.approx(wanted, rel=1e-6)
                assert info.default == same, (op.name, field)
