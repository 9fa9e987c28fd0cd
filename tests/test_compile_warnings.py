"""`tcc.compile` warns with the texts that `tcc compile` prints."""

from __future__ import annotations

import warnings

import onnx.parser
import pytest
import tcc
from tcc import driver


def test_each_warning_of_a_compile_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("state a cannot be empty", "state b cannot be empty", "state a cannot be empty")
    monkeypatch.setattr(driver, "empty_state_warnings", lambda graph: texts)
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        model (float[2] x) => (float[2] y) { y = Relu(x) }""")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = tcc.compile(model, level=1)
    assert [str(warning.message) for warning in caught] == [*texts[:2]]
    assert {warning.category for warning in caught} == {tcc.CompileWarning}
    assert {warning.filename for warning in caught} == {__file__}
    assert [port.name for port in module.inputs] == ["x"]
