"""Defines the inputs of a program of torch: inputs of the graph, constants, numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from tcc.errors import UserError
from tcc.frontends.emit import Emitter
from tcc.frontends.inputs import Shapes, check_names, check_rank, contradiction
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Constant, Fixed, Formula, Tensor, TorchProgram
from tcc.frontends.torch.convert.complex import parts_of, port_of
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import PARTS, part_type
from tcc.ir.index import as_int, const
from tcc.ir.types import TensorType
from tcc.zipped import zip_equal


def define_inputs(
    scope: Scope, symbols: Symbols, program: TorchProgram, shapes: Shapes
) -> dict[str, Any]:
    """Returns the value of each input of the program's block, in order, by name.

    Constants that the program updates become inputs of the graph, under their own names.
    """
    metas = dict(program.block.inputs)
    users = {n: t for n, t in metas.items() if n not in program.owned and isinstance(t, Tensor)}
    check_names(shapes, users, "program")
    _define_symbols(symbols, users, shapes, program.symbol_names)
    values: dict[str, Any] = {}
    for name, meta in program.block.inputs:
        owner = program.owned.get(name)
        if isinstance(owner, Constant) and name not in program.updates:
            values[name] = _constant(scope, program, owner, meta)
        elif isinstance(owner, Fixed):
            values[name] = owner.value
        elif isinstance(meta, Tensor):
            port_name = owner.name if isinstance(owner, Constant) else name
            with Emitter(scope, f"input {port_name}", [port_name]).writing():
                values[name] = _input(scope, symbols, port_name, meta)
        else:
            raise UserError(
                f"the input {name} is no tensor, and not fixed either",
                why=f"it is {meta!r}",
                hint="export it as a tensor, or as a fixed number",
            )
    _check_shapes(users, values, shapes)
    return values


def call_form(program: TorchProgram) -> list[Any] | None:
    """Returns how the caller nests the program's inputs, in the form of an artifact's manifest.

    Returns None if each input is an argument of its own, or if other things than lists, tuples,
    dictionaries and objects nest them.
    """
    leaves = [
        {"fixed": owner.value} if isinstance(owner, Fixed) else {"input": name}
        for name, _ in program.block.inputs
        if not isinstance(owner := program.owned.get(name), Constant)
    ]
    paths = program.arguments
    plain = all(path[0] == 0 and len(path) == 2 for path in paths)
    if len(paths) != len(leaves) or (plain and all("input" in leaf for leaf in leaves)):
        return None
    return [[list(path), leaf] for path, leaf in zip_equal(paths, leaves)]


def _input(scope: Scope, symbols: Symbols, name: str, meta: Tensor) -> Any:
    sizes = meta.shape + _pair(meta)
    port = scope.input(name, TensorType(part_type(meta.dtype), symbols.shape(sizes)))
    return parts_of(port) if meta.dtype in PARTS else port


def _pair(meta: Tensor) -> tuple[int, ...]:
    """Returns the extents of the last axis that a complex tensor gets: (2,), or () for a real
    tensor."""
    return (2,) if meta.dtype in PARTS else ()


def _constant(scope: Scope, program: TorchProgram, owner: Constant, meta: Any) -> Any:
    with Emitter(scope, f"constant {owner.name}", [owner.name]).writing():
        array, dtype = program.contents(owner.name)
        if not isinstance(meta, Tensor):
            raise UserError("a constant is no tensor")
        if part_type(meta.dtype) is not dtype or meta.shape + _pair(meta) != array.shape:
            raise UserError(
                "a constant is not what the program says",
                why=f"it is {dtype}{list(array.shape)}, due is {meta.dtype}{list(meta.shape)}",
            )
        operand = scope.constant(array, dtype, owner.name)
        return parts_of(operand) if meta.dtype in PARTS else operand


def _define_symbols(
    symbols: Symbols, users: Mapping[str, Tensor], shapes: Shapes, called: Mapping[str, str]
) -> None:
    """Defines a size for every symbol in the shapes of the inputs `users`.

    The size is a number if `shapes` fixes a dimension that is just this symbol. Otherwise it is a
    new symbol. Its name is the author's, in `called`, or else `INPUT.AXIS` of the first dimension
    that is just this symbol.
    """

    def fresh(symbol: str, hint: str) -> None:
        symbols.fresh(symbol, called.get(symbol, hint))

    dims = [(name, axis, d) for name, t in users.items() for axis, d in enumerate(t.shape)]
    opened = [(name, axis, d) for name, axis, d in dims if isinstance(d, Formula)]
    for name, axis, formula in opened:
        if formula.is_symbol and not symbols.knows(str(formula)):
            fixed_size = shapes[name][axis] if len(shapes.get(name, ())) > axis else None
            if isinstance(fixed_size, int):
                symbols.define(str(formula), const(fixed_size))
            else:
                fresh(str(formula), f"{name}.{axis}")
    for name, _, formula in opened:
        for symbol in sorted(set(_symbols_of(formula))):
            if not symbols.knows(symbol):
                fresh(symbol, f"{name}.{symbol}")


def _symbols_of(formula: Any) -> Iterator[str]:
    if isinstance(formula, Formula):
        if formula.is_symbol:
            yield str(formula)
        else:
            for argument in formula.args:
                yield from _symbols_of(argument)


def _check_shapes(users: Mapping[str, Tensor], values: Mapping[str, Any], shapes: Shapes) -> None:
    for name in users:
        shape = shapes.get(name)
        if shape is None:
            continue
        dims = port_of(values[name]).shape
        check_rank(name, shape, len(dims), "program has")
        for size, dim in zip_equal(shape, dims):
            if as_int(dim) != size:
                raise contradiction(name, size, "program has", dim.key)
