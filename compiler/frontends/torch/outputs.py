"""Ends an import: names the results, and connects the inputs that the program updates."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tcc.errors import UserError
from tcc.frontends.emit import Emitter
from tcc.frontends.operand import Operand
from tcc.frontends.outputs import free_name, output_values, rename
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import TorchProgram
from tcc.frontends.torch.convert.complex import Complex, pairs_of, port_of
from tcc.ir.graph import Graph, Value
from tcc.ir.index import Index
from tcc.ir.types import I64
from tcc.zipped import zip_equal


def finish_program(
    scope: Scope, program: TorchProgram, results: Sequence[Any], inputs: Mapping[str, Any]
) -> Graph:
    """Returns the graph with the program's results as outputs; results that are None are left out.

    A result that is an input, a constant or an earlier result becomes a copy. The new values of
    updated inputs come last, as `NAME.updated`; their memory is that of the input.
    """
    count = len(program.updates)
    named = zip_equal(program.output_names, results[count:])
    ports = [o for o in map(port_of, inputs.values()) if isinstance(o, Operand)]
    used_names = {o.graph_value.name for o in ports if o.graph_value is not None}
    present = [(name, result) for name, result in named if result is not None]
    pasts = [port_of(inputs[update]).value for update in program.updates]
    present += zip_equal((f"{past.name}.updated" for past in pasts), results[:count])
    if not present:
        raise UserError("the program returns no tensor")
    operands = ((name, _operand(scope, result, name)) for name, result in present)
    values = output_values(scope, ports, operands)
    names = {v: free_name(name, used_names, "_") for v, (name, _) in zip_equal(values, present)}
    states = tuple(zip_equal(values[len(values) - count :], pasts))
    for value, past in states:
        _check_update(value, past)
    return rename(scope.builder.finish(values, states), names)


def _check_update(value: Value, past: Value) -> None:
    if value.type != past.type:
        raise UserError(
            f"the program gives {past.name} a value of another type",
            why=f"it is {past.type!r}, its new value {value.type!r}",
        )


def _operand(scope: Scope, result: Any, name: str) -> Operand:
    if isinstance(result, Operand):
        return result
    if isinstance(result, Index):
        return scope.sizes([result], I64, scalar=True, name=name)
    if isinstance(result, bool | int | float):
        return scope.constant(result, name=name)
    if isinstance(result, Complex):
        with Emitter(scope, f"output {name}", [name]).writing():
            return pairs_of(result)
    raise UserError(f"output {name} is no tensor", why=f"it is {str(result)[:200]!r}")


def all_names(
    kinds: Sequence[tuple[str, str]], user: Sequence[str], inputs: Sequence[str]
) -> tuple[str, ...]:
    """Returns the names of the results that come after the new values of updated inputs.

    `kinds` has a pair for each of these results: torch's kind of it, and a target. A result is a
    value that the model returns, a loss, or a gradient. The target of a gradient is a constant, or
    one of the program's `inputs`, and gives the name `TARGET.grad`. `user` has the names of the
    results that are no gradients. Raises ValueError if there are more or fewer of them, and for
    other kinds.
    """
    user_names = iter(user)
    names = []
    for kind, target in kinds:
        if kind.startswith("gradient_to_"):
            names.append(f"{_input_named(target, inputs)}.grad")
            continue
        if kind not in ("user_output", "loss_output"):
            raise ValueError(f"results of kind {kind[:80]} are not supported")
        user_name = next(user_names, None)
        if user_name is None:
            raise ValueError("the program returns more results than its description")
        names.append("loss" if kind == "loss_output" else user_name)
    if next(user_names, None) is not None:
        raise ValueError("the program returns fewer results than its description")
    return tuple(names)


def _input_named(name: str, inputs: Sequence[str]) -> str:
    """Returns the input to which a gradient belongs; torch 2.13 calls input number N `argN_1`."""
    numbered = re.fullmatch(r"arg([0-9]{1,6})_1", name)
    number = int(numbered[1]) if numbered and name not in inputs else len(inputs)
    return inputs[number] if number < len(inputs) else name


def result_names(paths: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Returns a name for each leaf of the model's results: the keys on its path, joined."""
    if list(paths) == [()]:
        return ("output",)
    return tuple(map(_path_name, paths))


def _path_name(path: Sequence[Any]) -> str:
    text = "_".join(map(str, path))
    return text if text[:1].isalpha() else f"output_{text}"
