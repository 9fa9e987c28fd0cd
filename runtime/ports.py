"""The inputs and outputs of a model, as its artifact describes them and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tcc.runtime import abi
from tcc.runtime.values import is_list, is_list_type


@dataclass(frozen=True, slots=True)
class ModulePort:
    """An input or output of a model; a size in `shape` is None if only the run knows it.

    `text` shows the shape with its symbols. `state` is the index of the input that an output
    updates in place, or -1. Sequences and optionals have no dims; their `dtype` is the full type,
    as in "optional(sequence(f32[2,?]))".
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    text: str
    state: int = -1

    @property
    def kind(self) -> str:
        """Returns "tensor", "sequence" or "optional"."""
        return self.dtype.partition("(")[0] if is_list(self.dtype) else "tensor"


def port_of(port: abi.CPort) -> ModulePort:
    """Returns a port of the C interface as a `ModulePort`; raises ValueError if its type is
    invalid."""
    shape = tuple(n if n >= 0 else None for n in port.shape[: port.ndim])
    text = port.text.decode()
    if (port.dtype.code, port.dtype.bits) == abi.LIST:
        dtype, text = text, ""
        if not is_list_type(dtype):
            raise ValueError(f"{dtype[:99]!r} is no type of lists")
    else:
        dtype = abi.dtype_name(port.dtype)
    return ModulePort(port.name.decode(), dtype, shape, text, port.state)


def signature(inputs: Iterable[ModulePort], outputs: Iterable[ModulePort]) -> str:
    """Returns names, types and shapes of all inputs and outputs, for the hints of errors."""
    input_texts, output_texts = (
        ", ".join(f"'{p.name}' {p.dtype}{p.text}" for p in ports) or "nothing"
        for ports in (inputs, outputs)
    )
    return f"the model takes {input_texts} and gives {output_texts}"
