"""Imports a program of torch as a graph."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tcc.errors import InternalError, UserError
from tcc.frontends.inputs import Shapes
from tcc.frontends.place import placed
from tcc.frontends.scope import ImportSession, Scope
from tcc.frontends.torch.calls import Call, CallBlock, Number, TorchProgram
from tcc.frontends.torch.checks import check_results, require_condition
from tcc.frontends.torch.context import CallContext, NamedValues
from tcc.frontends.torch.convert.complex import ComplexContext, complex_converter_of, has_complex
from tcc.frontends.torch.converters import converter_of
from tcc.frontends.torch.guards import require_guards
from tcc.frontends.torch.inputs import define_inputs
from tcc.frontends.torch.outputs import finish_program
from tcc.frontends.torch.reals import late_size, real_size
from tcc.frontends.torch.regions import REGIONS
from tcc.frontends.torch.support import ASSERT_SCALAR, GETITEM, is_arithmetic, is_ignored
from tcc.frontends.torch.symbols import Symbols
from tcc.frozen import entity
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const
from tcc.zipped import zip_equal

# Errors that converters raise for arguments that torch's tracing would have rejected.
_UNSOUND = (
    ArithmeticError, AssertionError, AttributeError, InternalError, LookupError, StopIteration,
    TypeError, ValueError,
)  # fmt: skip


def import_program(program: TorchProgram, shapes: Shapes | None = None) -> Graph:
    """Imports a program that passed `check_calls`.

    `shapes` fixes symbolic sizes, by input name.  Weights are the arrays that the program's
    `contents` returns.  Inputs that the program updates are updated in place.  Raises `UserError`
    where the program needs something that tcc lacks.
    """
    session = ImportSession()
    scope = Scope(session, GraphBuilder("model"))
    symbols = Symbols(session, program.ranges, partial(late_size, scope), program.hints)
    values = define_inputs(scope, symbols, program, shapes or {})
    require_guards(scope, symbols, program)
    results = _Importer(symbols, program.trusted).run(scope, program.block, list(values.values()))
    return finish_program(scope, program, results, values)


@entity
class _Importer:
    """Imports blocks call by call."""

    _symbols: Symbols
    _trusted: bool

    def run(self, scope: Scope, block: CallBlock, inputs: Sequence[Any]) -> list[Any]:
        """Imports a block with values for its inputs; returns the values of its outputs."""
        if len(inputs) != len(block.inputs):
            raise UserError(
                f"a block of the program takes {len(block.inputs)} values, it gets {len(inputs)}",
                where=scope.path,
            )
        named = zip_equal(block.inputs, inputs)
        names = NamedValues({name: value for (name, _), value in named}, dict(block.inputs))
        for call in block.calls:
            with placed(call.location):
                try:
                    names.values[call.name] = self._call(scope, names, call)
                except _UNSOUND as error:
                    if self._trusted:
                        raise
                    raise UserError(
                        f"{call.target} cannot be imported",
                        why=f"its arguments are not what torch would take ({error})",
                    ) from error
            names.metas[call.name] = call.result
        return [names.resolve(value) for value in block.outputs]

    def _call(self, scope: Scope, names: NamedValues, call: Call) -> Any:
        """Imports a call; returns an operand, a size, None, or a tuple of these."""
        target, described, symbols = call.target, call.result, self._symbols
        if target == GETITEM:
            return _item(*(names.resolve(value) for value in call.arguments.values()))
        if target == ASSERT_SCALAR:
            condition = names.resolve(next(iter(call.arguments.values())))
            return require_condition(scope, symbols, condition)
        if is_ignored(target):
            return None
        if is_arithmetic(call):
            return _number(scope, symbols, call)
        region = REGIONS.get(target)
        if region is not None:
            with CallContext(call, scope, names, symbols).writing() as ctx:
                return region(ctx, self.run)
        if isinstance(described, Number) and described.kind == "float":
            return real_size(scope, symbols, described.value)
        result = _converted(scope, symbols, names, call)
        check_results(symbols, call, result)
        return result


def _converted(scope: Scope, symbols: Symbols, names: NamedValues, call: Call) -> Any:
    """Runs the converter of a call's operator and returns its results."""
    kind: type[CallContext] = CallContext
    converter: Any = converter_of(call.target)
    if has_complex(call, names.metas):
        kind, converter = ComplexContext, complex_converter_of(call.target)
    if converter is None:
        raise InternalError(f"{call.target} passed the check of support", where=call.location)
    with kind(call, scope, names, symbols).writing() as ctx:
        return ctx.finished(ctx.run(converter))


def _number(scope: Scope, symbols: Symbols, call: Call) -> Any:
    meta = call.result
    if not isinstance(meta, Number):
        return meta if isinstance(meta, bool | float) else symbols.index(meta)
    if meta.kind == "bool":
        return meta
    if meta.kind == "float":
        return real_size(scope, symbols, meta.value)
    if call.target.startswith("aten.sym_storage_offset."):
        symbols.learn(meta.value, const(0))  # 0, because tensors of the graph share no memory
    return symbols.index(meta)


def _item(values: Any, number: Any) -> Any:
    if isinstance(values, list | tuple) and isinstance(number, int) and 0 <= number < len(values):
        return values[number]
    raise UserError(f"there is no result {number!r}")
