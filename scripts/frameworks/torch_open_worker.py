"""Checks architectures of `architectures.py` with symbolic dims; writes a line of JSON for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tcc
import torch
from answers import answer, brief
from architectures import CASES, ModelCase
from tcc.errors import TccError, UserError
from torch.export import Dim
from torch_models_worker import build, compare, tensors

Inputs = dict[str, torch.Tensor]


def check(case: ModelCase) -> tuple[str, str]:
    """Returns (outcome, reason or largest error) of a case whose inputs have symbolic sizes.

    The outcome is `pass`, `fixed` (torch fixes all sizes), `refused`, `mismatch`, `crash`, `no
    model` (transformers cannot build or run it) or `no program` (torch cannot export it).
    """
    torch.manual_seed(0)
    try:
        model, inputs = build(case), {n: _several(x) for n, x in case.inputs().items()}
        arguments = {**inputs, **case.arguments, "return_dict": True}
        with torch.no_grad():
            model(**arguments)
    except Exception as error:
        return "no model", brief(error)
    axes = tuple(_open_axes(x) for x in inputs.values())
    try:
        with torch.no_grad():
            program = torch.export.export(
                Positional(model, tuple(inputs), arguments),
                tuple(inputs.values()),
                dynamic_shapes=(axes,),
                strict=False,
            )
    except Exception as error:
        return "no program", brief(error)
    try:
        module = tcc.compile(program, jobs=1)
    except UserError as error:
        return "refused", brief(error)
    except TccError as error:
        return "crash", brief(error)
    ports = {f"x_{number}": name for number, name in enumerate(inputs)}
    return _compared(model, module, ports, inputs, arguments)


class Positional(torch.nn.Module):
    """A model that takes the inputs `names` by position; `fixed` has its remaining arguments."""

    def __init__(self, model: Any, names: tuple[str, ...], fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, dict(fixed)

    def forward(self, *x: torch.Tensor) -> Any:
        return self.model(**(self.fixed | dict(zip(self.names, x, strict=True))))


def _several(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` with two rows if it has one, because torch fixes a size of one."""
    return torch.cat([x, x]) if x.shape[0] == 1 else x


def _open_axes(x: torch.Tensor) -> dict[int, Any]:
    """Returns the axes of `x` with symbolic sizes, as `torch.export` takes them.

    A token array [batch, length] has two symbolic axes, any other input has its first axis.
    """
    return dict.fromkeys(range(2 if x.ndim == 2 else 1), Dim.AUTO)


def _compared(
    model: Any, module: Any, ports: Mapping[str, str], inputs: Inputs, arguments: dict[str, Any]
) -> tuple[str, str]:
    """Returns (outcome, reason) over four pairs of sizes (batch, length), some unlike the export's.

    Sizes at which torch's model fails are left out. `ports` maps the module's inputs to names of
    `inputs`.
    """
    sizes = {ports[p.name]: p.shape for p in module.inputs}
    axes = sum(size is None for shape in sizes.values() for size in shape)
    if not axes:
        return "fixed", ""
    outcome, passes = ("pass", ""), 0
    for batch, length in ((2, None), (3, 9), (1, 7), (5, 16)):
        resized = {
            name: _resized(inputs[name], size, batch, length) for name, size in sizes.items()
        }
        try:
            with torch.no_grad():
                expected = tensors(model(**(arguments | resized)))
        except Exception:
            continue  # torch's model does not accept these sizes
        try:
            results = list(
                module.run({p.name: resized[ports[p.name]] for p in module.inputs}).values()
            )
        except UserError as error:
            outcome = "refused", brief(error)
            continue
        outcome = compare(expected, results)
        if outcome[0] != "pass":
            return outcome[0], f"{batch}, {length}: {outcome[1]}"
        passes += 1
    if not passes:
        return outcome
    return "pass", f"{axes} axes, at {passes} sizes, {outcome[1]}"


def _resized(x: torch.Tensor, sizes: Any, batch: int, length: int | None) -> torch.Tensor:
    """Returns `x` with its symbolic axes resized: axis 0 to `batch`, axis 1 to `length`.

    Elements repeat if an axis grows. `sizes` has None for a symbolic axis, and a `length` of None
    leaves axis 1 as it is.
    """
    for axis, size in enumerate((batch, length)[: x.ndim]):
        if size is not None and sizes[axis] is None:
            x = x.index_select(axis, torch.arange(size) % x.shape[axis])
    return x


if __name__ == "__main__":
    answer(CASES, CASES, check)
