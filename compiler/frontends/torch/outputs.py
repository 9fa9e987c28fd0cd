"""The end of an import: results under their names, and inputs that the program updates."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tcc.errors import UserError
from tcc.frontends.onnx.outputs import rename
from tcc.frontends.scope import Operand, Scope
from tcc.frontends.torch.calls import Program
from tcc.frontends.torch.convert.complex import Complex, emitter, pairs_of, port_of
from tcc.ir.graph import Graph, Value
from tcc.ir.index import Index
from tcc.ir.types import I64
from tcc.ops import OPS


def finish_program(
    scope: Scope, program: Program, results: Sequence[Any], inputs: Mapping[str, Any]
) -> Graph:
    """The graph with the program's results as outputs; those that are None are left out.

    A result that is an input, a constant or an earlier result gets a copy of its own.  New values
    of inputs come last, as `NAME.updated`; each is its input, updated in place.
    """
    count = len(program.updates)
    named = zip(program.output_names, results[count:], strict=True)
    states: dict[Value, Value] = {}
    operands = [o for o in map(port_of, inputs.values()) if isinstance(o, Operand)]
    taken: set[Value] = {o.made for o in operands if o.made is not None}
    own = {value.name for value in taken}
    present = [(name, result, None) for name, result in named if result is not None]
    for update, result in zip(program.updates, results[:count], strict=True):
        past = port_of(inputs[update]).value
        present.append((f"{past.name}.updated", result, past))
    if not present:
        raise UserError("the program returns no tensor")
    names: dict[Value, str] = {}
    for name, result, past in present:
        operand = _operand(scope, result, name)
        value = operand.value
        if value in taken or operand.array is not None:
            (value,) = scope.builder.add(
                OPS["identity"], [value], loc=f"output {name}", names=[name]
            )
        taken.add(value)
        names[value] = _free(name, own)
        if past is not None:
            _check_update(value, past)
            states[value] = past
    graph = rename(scope.builder.finish(list(names), tuple(states.items())), names)
    return graph


def _check_update(value: Value, past: Value) -> None:
    if value.type != past.type:
        raise UserError(
            f"the program gives {past.name} a value of another type",
            why=f"it is {past.type!r}, its new value {value.type!r}",
        )


def _free(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    taken.add(free)
    return free


def _operand(scope: Scope, result: Any, name: str) -> Operand:
    if isinstance(result, Operand):
        return result
    if isinstance(result, Index):
        return scope.sizes([result], I64, scalar=True, name=name)
    if isinstance(result, bool | int | float):
        return scope.constant(result, name=name)
    if isinstance(result, Complex):
        return pairs_of(emitter(scope, name, f"output {name}"), result)
    raise UserError(f"output {name} is no tensor", why=f"it is {str(result)[:200]!r}")


def all_names(
    kinds: Sequence[tuple[str, str]], user: Sequence[str], inputs: Sequence[str]
) -> tuple[str, ...]:
    """The names of results behind the updates: `user` names of what the model returns, its loss
    among them, and the gradients that a joint program gives.

    `kinds` are torch's kind of each result and what a gradient belongs to: a constant, or one of
    the program's `inputs`.  Raises ValueError where the model returns other results than `user`.
    """
    rest = iter(user)
    names = []
    for kind, target in kinds:
        if kind.startswith("gradient_to_"):
            names.append(f"{_input_named(target, inputs)}.grad")
            continue
        if kind not in ("user_output", "loss_output"):
            raise ValueError(f"results of kind {kind[:80]} are not supported")
        own = next(rest, None)
        if own is None:
            raise ValueError("the program returns more results than its description")
        names.append("loss" if kind == "loss_output" else own)
    if next(rest, None) is not None:
        raise ValueError("the program returns fewer results than its description")
    return tuple(names)


def _input_named(name: str, inputs: Sequence[str]) -> str:
    """The input that a gradient belongs to: torch 2.13 names it `argN_1`, by its number."""
    numbered = re.fullmatch(r"arg([0-9]{1,6})_1", name)
    number = int(numbered[1]) if numbered and name not in inputs else len(inputs)
    return inputs[number] if number < len(inputs) else name


def result_names(paths: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """A name for each leaf of what the model returns: the keys on the way there, joined."""
    if list(paths) == [()]:
        return ("output",)
    return tuple(map(_path_name, paths))


def _path_name(path: Sequence[Any]) -> str:
    text = "_".join(map(str, path))
    return text if text[:1].isalpha() else f"output_{text}"
