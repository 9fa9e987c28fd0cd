"""Runs a program with torch.compile, a peer of `tcc bench`."""

from collections.abc import Callable
from typing import Any

import torch
from tcc.frontends.torch.calls import Fixed, Tensor, TorchProgram
from tcc.frontends.torch.replay import array_of, tensor_of
from tcc.frontends.torch.retrace import run_block
from tcc.ir.op import Array, NamedArrays
from torch.fx.experimental.proxy_tensor import make_fx


def compiled(
    program: TorchProgram, arrays: NamedArrays, threads: int
) -> Callable[[], dict[str, Array]]:
    """Returns a function that runs the compiled program on `arrays` and returns results by number.

    `arrays` has the inputs by their graph names. `threads` bounds the threads of this process.
    Raises `UserError` where torch refuses a call.
    """
    torch.set_num_threads(threads)
    values = {name: _value(program, arrays, name, meta) for name, meta in program.block.inputs}
    tensors = {name: item for name, item in values.items() if isinstance(item, torch.Tensor)}

    def block(tensors: dict[str, Any]) -> list[Any]:
        return run_block(program.block, [*(values | tensors).values()])

    with torch.no_grad():
        run_compiled = torch.compile(make_fx(block)(tensors))

    def run() -> dict[str, Array]:
        with torch.no_grad():
            results = run_compiled(tensors)[len(program.updates) :]
        return {str(number): array_of(result) for number, result in enumerate(results)}

    return run


def _value(program: TorchProgram, arrays: NamedArrays, name: str, meta: Tensor) -> Any:
    """Returns the value of an input of the program's block: an input, a constant, or a number."""
    owner = program.owned.get(name)
    if isinstance(owner, Fixed):
        return owner.value
    port_name = getattr(owner, "name", name)
    array = arrays.get(port_name)
    return tensor_of(program, meta, program.contents(port_name)[0] if array is None else array)
