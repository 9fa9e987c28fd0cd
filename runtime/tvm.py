"""Artifacts as functions of Relax programs: `tcc.tvm`.

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        results = builder.emit(tcc.tvm.call(module, "classifier", x))
        builder.emit_func_output(results)

The program refers to the artifact by a name. A process that runs a stored program calls
`tcc.tvm.register` first. Only `call` needs apache-tvm, version 0.27 or newer.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from tcc.runtime import abi
from tcc.runtime.module import Module
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError, MissingLibraryError

_PREFIX = "tcc."
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


def register(module: Module, name: str) -> None:
    """Registers the artifact in tvm-ffi as the function `tcc.NAME`, which TVM finds by this name.

    The function takes the inputs, then an array for each output, and fills those. It replaces an
    older function of the name. Raises what `Module.ffi` raises.
    """
    function = module.ffi["run_into"]
    import_module("tvm_ffi").register_global_func(_PREFIX + name, function, override=True)


def call(module: Module, name: str, *arguments: Any) -> Any:
    """Registers the artifact, and returns a Relax expression that calls it with `arguments`.

    The arguments are Relax expressions of tensor types with known shapes, one for each input, in
    order. The expression has the outputs' types; several outputs are a tuple. A size that the
    artifact leaves open may be a symbol of the program.

    Raises InputError if the arguments do not fit the inputs, or if a Relax program cannot hold a
    port: a sequence, an optional, a state, a type that NumPy lacks, or a size that the inputs'
    shapes do not tell. Raises MissingLibraryError without apache-tvm.
    """
    relax = _relax()
    if len(arguments) != len(module.inputs):
        raise InputError(
            "the call does not fit the artifact",
            where=name,
            why=f"the artifact has {len(module.inputs)} inputs, and the call "
            f"{len(arguments)} arguments",
            hint="give an argument for each of " + ", ".join(port.name for port in module.inputs),
        )
    sizes: dict[str, Any] = {}
    for port, argument in zip(module.inputs, arguments, strict=True):
        _check_argument(port, argument, sizes)
    types = [
        relax.TensorType([_size(text, sizes, port) for text in _texts(port)], _dtype(port))
        for port in module.outputs
    ]
    register(module, name)
    return relax.call_dps_packed(
        _PREFIX + name, relax.Tuple(list(arguments)), types[0] if len(types) == 1 else types
    )


def _relax() -> Any:
    try:
        return import_module("tvm.relax")
    except ImportError as error:
        raise MissingLibraryError(
            "apache-tvm is not installed", where="tcc.tvm", hint="pip install apache-tvm"
        ) from error


def _texts(port: ModulePort) -> list[str]:
    """Returns the size of each axis as a text; raises InputError unless the port is a tensor."""
    if port.kind != "tensor" or port.state >= 0:
        kind = "state" if port.state >= 0 else port.kind
        raise InputError(f"{port.name!r} is a {kind}, which no Relax program can hold")
    return [text for text in port.text.strip("[]").split(",") if text]


def _dtype(port: ModulePort) -> str:
    if port.dtype in abi.EXTENSIONS or port.dtype == "string":
        raise InputError(f"{port.name!r} has elements of {port.dtype}, which NumPy lacks")
    return abi.numpy_dtype(port.dtype).name


def _check_argument(port: ModulePort, argument: Any, sizes: dict[str, Any]) -> None:
    """Checks an argument against its input, and adds the sizes of the input's symbols to `sizes`.

    TVM holds a constant size as an integer node, and a symbol as a variable.
    """
    texts, dtype = _texts(port), _dtype(port)
    shape = getattr(argument.ty, "shape", None)
    type_text = f"{argument.ty}"
    if shape is None or len(shape) != len(texts) or str(argument.ty.dtype) != dtype:
        raise _misfit(port, type_text)
    for text, size in zip(texts, shape, strict=True):
        constant = getattr(size, "value", None)
        size_of_input = int(text) if text.isdecimal() else sizes.get(text)
        if text.isidentifier() and size_of_input is None:
            sizes[text] = size if constant is None else int(constant)
        elif (
            isinstance(size_of_input, int)
            and constant is not None
            and int(constant) != size_of_input
        ):
            raise _misfit(port, type_text)


def _misfit(port: ModulePort, type_text: str) -> InputError:
    return InputError(
        f"an argument does not fit the input {port.name!r}",
        why=f"the input takes {port.dtype}{port.text}, and the argument is {type_text}",
        hint="give a tensor whose type has this element type and a shape of this rank",
    )


def _size(text: str, sizes: Mapping[str, Any], port: ModulePort) -> Any:
    """Returns a size of an output, a number or an expression of the program's symbols."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.BinOp(left=first, op=symbol, right=second) if type(symbol) in _OPERATORS:
                return _OPERATORS[type(symbol)](value(first), value(second))
        raise InputError(
            f"the size {text!r} of {port.name!r} does not follow from the inputs' shapes",
            hint="compile with fixed sizes: --input NAME=SHAPE",
        )

    try:
        return value(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return value(ast.Pass())
