"""`tvm_ffi.load_module` loads the same file, and calls copy no arrays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import tvm_ffi
from programs import Builder
from tcc.ir.program import Copy, Input
from tcc.runtime import load
from tcc.runtime.reports import RuntimeFailure

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def module(mlp_path: Path) -> Any:
    return tvm_ffi.load_module(str(mlp_path))


def test_torch_and_numpy_get_results(module: Any) -> None:
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    expected = np.maximum(x, 0) + np.arange(1, 10, dtype=np.float32)
    assert np.array_equal(np.from_dlpack(module["main"](x)), expected)
    y = module["main"](torch.from_numpy(x))
    assert isinstance(y, torch.Tensor)
    assert np.array_equal(y.numpy(), expected)
    del module
    assert np.array_equal(y.numpy(), expected)


def test_a_loaded_module_hands_its_artifact_to_tvm_ffi(mlp_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "second.so"
    copy.write_bytes(mlp_path.read_bytes())
    loaded = load(copy)
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    expected = np.maximum(x, 0) + np.arange(1, 10, dtype=np.float32)
    assert np.array_equal(np.from_dlpack(loaded.ffi["main"](x)), expected)
    y = np.zeros(9, np.float32)
    loaded.ffi["run_into"](x, y)
    assert np.array_equal(y, expected)
    other = tmp_path / "other.so"
    other.write_bytes(mlp_path.read_bytes())
    other.rename(copy)
    with pytest.raises(RuntimeFailure, match="another file"):
        _ = loaded.ffi


def test_ffi_without_its_package_is_an_error(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(RuntimeFailure, match="apache-tvm-ffi is not installed"):
        _ = load(mlp_path).ffi


def test_run_into_writes_to_the_callers_memory(module: Any) -> None:
    x, y = torch.ones(5), torch.zeros(5)
    address = y.data_ptr()
    assert module["run_into"](x, y) is None
    assert y.data_ptr() == address
    assert y.tolist() == [2, 3, 4, 5, 6]
    out = np.zeros(5, np.float32)
    module["run_into"](x.numpy(), out)
    assert out.tolist() == [2, 3, 4, 5, 6]
    assert torch.empty(0).data_ptr() == 0
    module["run_into"](torch.empty(0), torch.empty(0))
    with pytest.raises(ValueError, match="neither an array nor an allocator"):
        module["run_into"](torch.ones(1), torch.empty(0))


def test_strides_are_honoured_and_overlap_is_refused(module: Any) -> None:
    x = torch.arange(10, dtype=torch.float32)
    assert module["main"](x[::2]).tolist() == [1, 4, 7, 10, 13]
    with pytest.raises(ValueError, match="shares memory with input 'x'"):
        module["run_into"](x, x)
    with pytest.raises(ValueError, match="row-major"):
        module["run_into"](x[:5], torch.zeros(10)[::2])


def test_errors_are_python_errors(module: Any) -> None:
    with pytest.raises(ValueError, match="expected element type f32, got f64"):
        module["main"](np.zeros(3))
    with pytest.raises(ValueError, match=r"expected shape \[n\], got \[1,1\]"):
        module["main"](np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="expected a tensor"):
        module["main"](3)
    with pytest.raises(ValueError, match="expected 1 inputs, got 2"):
        module["main"](torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="expected 2 arrays"):
        module["run_into"](torch.zeros(1))
    with pytest.raises(ValueError, match=r"output 'y': expected shape \[2\], got \[3\]"):
        module["run_into"](torch.zeros(2), torch.zeros(3))


def test_metadata_and_doc(module: Any) -> None:
    schema = json.loads(module.get_function_metadata("main")["type_schema"])
    assert schema["type"] == "ffi.Function"
    assert len(schema["args"]) == 2
    assert "input x: f32 [n]" in module.get_function_doc("main")


def test_several_outputs_come_as_an_array(kernels: bytes, tmp_path: Path) -> None:
    b = Builder()
    one, four = b.const(1), b.const(4)
    b.input("x", "f32", [one], "[1]")
    x = b.buffer(Input(0))
    for name in ("first", "second"):
        y = b.output(name, "f32", [one], "[1]")
        b.allocate(y, four)
        b.body.append(Copy(y, x, four))
    programs.link(b.program(), kernels, tmp_path / "two.so")
    first, second = tvm_ffi.load_module(str(tmp_path / "two.so"))["main"](torch.full((1,), 3.0))
    assert first.item() == second.item() == 3
    assert first.data_ptr() != second.data_ptr()


def test_both_faces_work_in_one_process(mlp_path: Path, module: Any) -> None:
    x = torch.ones(4)
    assert torch.equal(load(mlp_path)(x), module["main"](x))
