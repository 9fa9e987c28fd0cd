"""Runs of a program by torch's own operators, on arrays: the reference of `tcc verify`."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from tcc.frontends.rounding import Rounding
from tcc.frontends.torch.calls import Fixed, Formula, Program, Tensor
from tcc.frontends.torch.exported import contents
from tcc.frontends.torch.retrace import run_block
from tcc.frontends.torch.rounded import Rounder
from tcc.frontends.torch.tensors import PARTS
from tcc.ir.op import Array, NamedArrays


def replayed(program: Program, rounding: Rounding) -> Callable[[NamedArrays], dict[str, Array]]:
    """A function that runs the program, rounded, on arrays of its inputs, as its graph names them.

    It gives the results under their numbers, and new values of inputs as `NAME.updated`; complex
    elements are pairs.  Raises `UserError` where torch refuses a call.
    """
    owners = program.owned
    held = {name: owner.value for name, owner in owners.items() if isinstance(owner, Fixed)}
    weights: dict[Any, Any] = {}
    shown = {name: getattr(owners.get(name), "name", name) for name, _ in program.block.inputs}

    def run(arrays: NamedArrays) -> dict[str, Array]:
        tensors = {
            name: _tensor(program, known, arrays[shown[name]])
            for name, known in program.block.inputs
            if shown[name] in arrays
        }
        rounder = Rounder(program, rounding, tensors, weights)
        for name, known in program.block.inputs:
            if name not in held and name not in tensors:
                array, _ = program.contents(shown[name])
                if shown[name] in rounder.missed:
                    array = rounding.weight([shown[name]], array, -1)
                held[name] = _tensor(program, known, array)
        versions = {name: tensor._version for name, tensor in tensors.items()}
        values = held | tensors
        seen = [rounder.seen(name, values[name]) for name, _ in program.block.inputs]
        with torch.no_grad():
            results = run_block(program.block, seen, rounder)
        count = len(program.updates)
        present = [result for result in results[count:] if result is not None]
        changed = {n: tensor for n, tensor in tensors.items() if tensor._version != versions[n]}
        updated = changed | dict(zip(program.updates, results, strict=False))
        named = {f"{shown[name]}.updated": tensor for name, tensor in updated.items()}
        outputs = {str(number): result for number, result in enumerate(present)}
        return {name: _array(result) for name, result in (outputs | named).items()}

    return run


def _tensor(program: Program, known: Tensor, array: Array) -> Any:
    """A copy of an array as the program sees it, its axes laid out as those of its example."""
    tensor = torch.from_numpy(np.array(array))
    if known.dtype in PARTS:
        tensor = torch.view_as_complex(tensor.contiguous())
    strides = [
        program.hints.get(str(s), inf) if isinstance(s, Formula) else s for s in known.strides
    ]
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    laid = tensor.permute(order).contiguous().permute([*np.argsort(order)])
    return laid.to(getattr(torch, known.dtype))


def _array(result: Any) -> Array:
    if isinstance(result, torch.Tensor):
        return contents(result, "a result")[0]
    return np.asarray(result)
