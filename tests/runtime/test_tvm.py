"""Artifacts run in Relax programs, and take arrays of TVM."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tcc
from tcc.runtime import load
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError, MissingLibraryError

needs_tvm = pytest.mark.skipif(find_spec("tvm") is None, reason="apache-tvm is not installed")
X = np.linspace(-1, 1, 9, dtype=np.float32)
EXPECTED = np.maximum(X, 0) + np.arange(1, 10, dtype=np.float32)


@pytest.fixture
def tvm() -> Any:
    importlib.import_module("tvm.relax")
    return importlib.import_module("tvm")


def ran(tvm: Any, builder: Any, *arrays: Any) -> Any:
    """Returns the result of the program's `main`, which TVM compiles for this machine's CPU."""
    built = tvm.compile(builder.get(), target="llvm")
    machine = tvm.relax.VirtualMachine(built, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays))


def var(tvm: Any, shape: Any, dtype: str = "float32") -> Any:
    return tvm.relax.Var("x", tvm.relax.TensorType(shape, dtype))


@needs_tvm
def test_a_relax_program_calls_an_artifact(mlp_path: Path, tvm: Any) -> None:
    module = load(mlp_path)
    builder, x = tvm.relax.BlockBuilder(), var(tvm, (9,))
    with builder.function("main", [x]):
        y = builder.emit(tcc.tvm.call(module, "mlp", x))
        builder.emit_func_output(builder.emit(tvm.relax.op.multiply(y, x)))
    np.testing.assert_array_equal(ran(tvm, builder, X).numpy(), EXPECTED * X)


@needs_tvm
def test_a_symbol_of_the_program_is_a_size_of_the_artifact(mlp_path: Path, tvm: Any) -> None:
    module = load(mlp_path)
    x = var(tvm, (tvm.tirx.Var("m", "int64"),))
    builder = tvm.relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(tcc.tvm.call(module, "mlp", x)))
    np.testing.assert_array_equal(ran(tvm, builder, X).numpy(), EXPECTED)
    np.testing.assert_array_equal(ran(tvm, builder, X[6:]).numpy(), X[6:] + np.arange(1, 4))


@needs_tvm
def test_an_artifact_takes_arrays_of_tvm(mlp_path: Path, tvm: Any) -> None:
    x, y = tvm.runtime.tensor(X), tvm.runtime.tensor(np.zeros(9, np.float32))
    functions = load(mlp_path).ffi
    functions["run_into"](x, y)
    np.testing.assert_array_equal(y.numpy(), EXPECTED)
    np.testing.assert_array_equal(np.from_dlpack(functions["main"](x)), EXPECTED)


@needs_tvm
def test_arguments_that_do_not_fit_are_named(mlp_path: Path, tvm: Any) -> None:
    module = load(mlp_path)
    with pytest.raises(InputError, match="the artifact has 1 inputs, and the call 0 arguments"):
        tcc.tvm.call(module, "mlp")
    for x in (var(tvm, (9,), "float64"), var(tvm, (3, 3))):
        with pytest.raises(InputError, match=r"the input takes f32\[n\]"):
            tcc.tvm.call(module, "mlp", x)


def test_without_tvm_the_error_says_what_to_install(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    monkeypatch.delitem(sys.modules, "tvm.relax", raising=False)
    with pytest.raises(MissingLibraryError, match="apache-tvm is not installed"):
        tcc.tvm.call(load(mlp_path), "mlp", None)


class Type:
    """A stand-in for the type of a Relax expression."""

    def __init__(self, *shape: int, dtype: str = "float32") -> None:
        self.shape = [SimpleNamespace(value=size) for size in shape]
        self.dtype = dtype

    def __str__(self) -> str:
        return f"{self.dtype} of {len(self.shape)} axes"


def port(name: str, text: str, dtype: str = "f32", state: int = -1) -> ModulePort:
    return ModulePort(name, dtype, (None,) * (text.count(",") + 1), text, state)


def called(monkeypatch: pytest.MonkeyPatch, output: ModulePort, *shape: int) -> Any:
    """Returns the result types of a call, recorded by a stand-in for Relax."""
    relax = SimpleNamespace(
        TensorType=lambda shape, dtype: (shape, dtype),
        Tuple=list,
        call_dps_packed=lambda name, arguments, types: (name, types),
    )
    monkeypatch.setitem(sys.modules, "tvm", SimpleNamespace(relax=relax))
    monkeypatch.setitem(sys.modules, "tvm.relax", relax)
    monkeypatch.setattr("tcc.runtime.tvm.register", lambda module, name: None)
    module: Any = SimpleNamespace(inputs=(port("x", "[n,4]"),), outputs=(output,))
    return tcc.tvm.call(module, "f", SimpleNamespace(ty=Type(*shape)))


def test_sizes_of_outputs_follow_from_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = called(monkeypatch, port("y", "[2*n+1,n//2,(n-1)%4,3]", "i64"), 7, 4)
    assert result == ("tcc.f", ([15, 3, 2, 3], "int64"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (port("y", "[k]"), "the size 'k' of 'y' does not follow"),
        (port("y", "[max(n,2)]"), "does not follow"),
        (port("y", "[__import__('os')]"), "does not follow"),
        (port("y", "[n]", "bf16"), "elements of bf16"),
        (port("y", "[n]", state=0), "is a state"),
        (port("y", "", "sequence(f32[?])"), "is a sequence"),
    ],
)
def test_artifacts_without_a_relax_form_are_refused(
    output: ModulePort, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as caught:
        called(monkeypatch, output, 7, 4)
    assert message in str(caught.value)


def test_a_constant_size_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not fit the input 'x'"):
        called(monkeypatch, port("y", "[n]"), 7, 5)
