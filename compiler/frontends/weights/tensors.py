"""Reads the tensors of a model, each when a node needs it, and multiplies with them as stored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tcc.errors import UserError
from tcc.frontends.emit import constant
from tcc.frontends.operand import Operand, Refusal, current
from tcc.frontends.weights.checkpoint import Checkpoint, Levels
from tcc.frontends.weights.config import Config
from tcc.frontends.weights.families import TABLES
from tcc.frontends.weights.levels import gathered_rows, matmul_rows, stacked_matrices
from tcc.frontends.weights.names import missing_tensor, named_tensors, unknown_tensor
from tcc.frozen import field_names
from tcc.ir.narrow import bf16_values
from tcc.ir.op import Array
from tcc.ir.types import BF16, F32, dtype_of
from tcc.zipped import zip_equal


class Tensors:
    """The tensors of a model by GGUF's names.

    A method that reads a tensor raises `UserError` where it is missing or has another shape, and
    names the constants and the results of the following nodes after the tensor.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._tensors = named_tensors(checkpoint, config.family, config.layers)
        # A tied model may hold the table of tokens a second time.
        self._read = {*TABLES["rotary_tensors"], *["output.weight"] * bool(config.is_tied)}
        self._is_folder = checkpoint.form == "folder"

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> Sequence[int]:
        """Returns the shape of a tensor, or of the first matrix of experts."""
        if name not in self._tensors:
            raise missing_tensor(self._checkpoint, name)
        return self._tensors[name][0].shape

    def vector(self, name: str, size: int | None, offset: float = 0.0) -> Operand:
        """Returns a tensor of `size` floats, in f32; a folder's plus `offset`."""
        shape = (1, size) if len(self.shape(name)) == 2 else (size,)
        vector = _stored(self._contents(name, shape)).cast(F32).flat()
        return vector + offset if offset and self._is_folder else vector

    def matmul(self, x: Operand, name: str, width: int | None = None) -> Operand:
        """Multiplies rows `x` `[n, depth]` with the matrix `name`, and adds its bias if it has one.

        Returns f32 `[n, width]`; the matrix decides a `width` of None.
        """
        contents = self._contents(f"{name}.weight", (width, x.extent(-1)))
        if isinstance(contents, Levels):
            y = matmul_rows(x, contents)
        else:
            y = x @ _stored(contents).cast(F32).swap_axes(0, 1)
        bias = f"{name}.bias"
        if bias in self or name.split(".")[-1] in self._config.family.biases:
            return y + self.vector(bias, y.extent(-1))
        return y

    def gathered(self, name: str, index: Operand) -> Operand:
        """Returns the rows of the matrix `name` that `index` `[n]` selects, in f32."""
        contents = self._contents(name, (None, self._config.width))
        if isinstance(contents, Levels):
            return gathered_rows(contents, index)
        return _stored(contents).cast(F32).gather(index, axis=0)

    def experts(self, name: str, shape: Sequence[int | None]) -> Operand:
        """Returns the matrices of all experts, `[experts, out, in]`, in f32."""
        contents = self._contents(name, shape)
        if isinstance(contents, Levels):
            return stacked_matrices(contents, self.shape(name))
        return _stored(contents).cast(F32)

    def check_all_read(self) -> None:
        """Raises `UserError` if a tensor has not been read."""
        for name in self._tensors.keys() - self._read:
            name_in_file = self._tensors[name][0].name
            raise unknown_tensor(self._checkpoint, name_in_file, self._config.family)

    def _contents(self, name: str, shape: Sequence[int | None]) -> Array | Levels:
        """Returns a tensor; matrices of experts that are tensors of their own are stacked."""
        is_stack = len(self.shape(name)) < len(shape)
        self._read.add(name)
        current().names = (name,)
        part = name.split(".")[-2]
        step = -1 if self._is_folder and part in self._config.family.transposed else 1
        contents = []
        for weight in self._tensors[name]:
            due, sizes = shape[is_stack:], weight.shape[:: step if len(weight.shape) == 2 else 1]
            fits = len(sizes) == len(due)
            if not fits or any(d not in (None, n) for d, n in zip_equal(due, sizes)):
                raise UserError(
                    "a tensor of the model does not fit",
                    where=f"{self._checkpoint.where}: {weight.name[:200]}",
                    why=f"its shape is {list(sizes)}, due is {list(due)}",
                )
            contents.append(weight.load())
        if is_stack:
            return np.stack([array for array in contents if not isinstance(array, Levels)])
        tensor = self._in_order(part, contents[0])
        is_turned = step < 0 and len(shape) == 2
        return tensor.T if is_turned and not isinstance(tensor, Levels) else tensor

    def _in_order(self, part: str, contents: Array | Levels) -> Array | Levels:
        """Returns a tensor whose heads have the two halves of rotated pairs apart."""
        config = self._config
        heads = {"attn_q": config.heads, "attn_k": config.key_heads}.get(part)
        if heads is None or self._is_folder or not config.family.adjacent:
            return contents
        if config.rotary is None or config.rotary.dims != config.head_width:
            raise Refusal(f"only a part of each head of {part} is rotated")
        order = (
            np.arange(heads * config.head_width).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        )
        if not isinstance(contents, Levels):
            return contents[order]
        fields: dict[str, Any] = {n: getattr(contents, n) for n in field_names(contents)}
        arrays = {n: field[order] for n, field in fields.items() if isinstance(field, np.ndarray)}
        return replace(contents, **{**fields, **arrays})


def _stored(contents: Array | Levels) -> Operand:
    """Returns an array as a constant of its stored type; a bf16 array holds bits."""
    if isinstance(contents, Levels) or contents.dtype not in (np.float32, np.float16, np.uint16):
        raise Refusal("a tensor is stored neither in f32, f16 or bf16 nor as a quantised matrix")
    if contents.dtype == np.uint16:
        return constant(bf16_values(contents), BF16)
    return constant(contents, dtype_of(contents))
