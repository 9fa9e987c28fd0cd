"""Runs a program with torch's own operators, on arrays: the reference of `tcc verify`."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from tcc.frontends.place import placed
from tcc.frontends.rounding import Rounding
from tcc.frontends.torch.calls import Fixed, Formula, Tensor, TorchProgram
from tcc.frontends.torch.exported import contents
from tcc.frontends.torch.retrace import run_block
from tcc.frontends.torch.rounded import Rounder
from tcc.frontends.torch.tensors import PARTS
from tcc.ir.op import Array, NamedArrays


def replayed(
    program: TorchProgram, rounding: Rounding
) -> Callable[[NamedArrays], dict[str, Array]]:
    """Returns a function that runs the rounded program on arrays of its inputs, by their graph
    names.

    The function returns the results by their numbers, and new values of inputs as `NAME.updated`.
    Complex elements are pairs of real ones. It raises `UserError` where torch refuses a call.
    """
    owners = program.owned
    fixed_values = {name: owner.value for name, owner in owners.items() if isinstance(owner, Fixed)}
    weights: dict[Any, Any] = {}
    port_names = {name: getattr(owners.get(name), "name", name) for name, _ in program.block.inputs}

    def run(arrays: NamedArrays) -> dict[str, Array]:
        tensors = {
            name: tensor_of(program, meta, arrays[port_names[name]])
            for name, meta in program.block.inputs
            if port_names[name] in arrays
        }
        rounder = Rounder(program, rounding, tensors, weights)
        for name, meta in program.block.inputs:
            if name not in fixed_values and name not in tensors:
                array, _ = program.contents(port_names[name])
                if port_names[name] in rounder.missed:
                    array = rounding.weight([port_names[name]], array, -1)
                fixed_values[name] = tensor_of(program, meta, array)
        versions = {name: tensor._version for name, tensor in tensors.items()}
        values = fixed_values | tensors
        inputs = [rounder.seen(name, values[name]) for name, _ in program.block.inputs]
        with torch.no_grad():
            results = run_block(program.block, inputs, rounder)
        present = [result for result in results[len(program.updates) :] if result is not None]
        changed = {n: tensor for n, tensor in tensors.items() if tensor._version != versions[n]}
        updated = changed | dict(zip(program.updates, results, strict=False))
        named = {f"{port_names[name]}.updated": tensor for name, tensor in updated.items()}
        outputs = {str(number): result for number, result in enumerate(present)}
        return {name: array_of(result) for name, result in (outputs | named).items()}

    return run


def tensor_of(program: TorchProgram, meta: Tensor, array: Array) -> Any:
    """Returns a copy of an array in the program's dtype.

    Its axes are stored in the same order as those of the archive's example.
    """
    tensor = torch.from_numpy(np.array(array))
    if meta.dtype in PARTS:
        tensor = torch.view_as_complex(tensor.contiguous())
    strides = [
        program.hints.get(str(s), inf) if isinstance(s, Formula) else s for s in meta.strides
    ]
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    laid = tensor.permute(order).contiguous().permute([*np.argsort(order)])
    return laid.to(getattr(torch, meta.dtype))


def array_of(result: Any) -> Array:
    """Returns a result, a tensor or a number, as an array; complex elements are pairs."""
    if isinstance(result, torch.Tensor):
        with placed("a result"):
            return contents(result)[0]
    return np.asarray(result)
