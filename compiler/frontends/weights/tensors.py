"""Reads the tensors of a model, each when a node needs it, and multiplies with them as stored."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from tcc.errors import UserError
from tcc.frontends.aligned import aligned
from tcc.frontends.emit import constant
from tcc.frontends.operand import Operand, Refusal, current
from tcc.frontends.weights.checkpoint import Checkpoint, Levels, Weight
from tcc.frontends.weights.config import Config
from tcc.frontends.weights.levels import gathered_rows, matmul_rows, stacked_matrices
from tcc.frontends.weights.names import named_tensors, unknown_tensor
from tcc.frontends.weights.rope_facts import ROPE_TENSORS
from tcc.frozen import field_names
from tcc.ir.narrow import bf16_values
from tcc.ir.op import Array
from tcc.ir.types import BF16, F32, dtype_of

# The element types of stored arrays; a bf16 array holds its bits.
_STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class Tensors:
    """The tensors of a model by GGUF's names.

    A method that reads a tensor raises `UserError` where it is missing or has another shape.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._tensors = named_tensors(checkpoint, config.family, config.layers)
        # A tied model may hold the table of tokens a second time.
        unread = {"output.weight"} if config.is_tied else ()
        self._read: set[str] = {*ROPE_TENSORS, *unread}
        self._is_folder = checkpoint.form == "folder"

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str, size: int) -> Operand:
        """Returns a tensor of `size` floats, in f32."""
        with named(name):
            return _stored(self._contents(name, (size,))).cast(F32)

    def norm(self, name: str, size: int) -> Operand:
        """Returns the weights of a norm, in f32, with what the family adds to a folder's."""
        weights, offset = self.vector(name, size), self._config.family.norm_offset
        return weights + offset if offset and self._is_folder else weights

    def matmul(self, x: Operand, name: str, width: int | None = None) -> Operand:
        """Multiplies rows `x` `[n, depth]` with the matrix `name`, and adds its bias if it has one.

        Returns f32 `[n, width]`; the matrix decides a `width` of None.
        """
        weight, bias = f"{name}.weight", f"{name}.bias"
        with named(name):
            contents = self._contents(weight, (width, x.extent(-1)))
            if isinstance(contents, Levels):
                y = matmul_rows(x, contents)
            else:
                y = x @ _stored(contents).cast(F32).swap_axes(0, 1)
        size = y.extent(-1)
        if size and (bias in self or name.split(".")[-1] in self._config.family.biases):
            return y + self.vector(bias, size)
        return y

    def gathered(self, name: str, index: Operand, width: int) -> Operand:
        """Returns the rows of the matrix `name` that `index` `[n]` selects, in f32."""
        with named(name):
            contents = self._contents(name, (None, width))
            if isinstance(contents, Levels):
                return gathered_rows(contents, index)
            return _stored(contents).gather(index, axis=0).cast(F32)

    def experts(self, name: str, shape: Sequence[int | None]) -> Operand:
        """Returns the matrices of all experts, `[experts, out, in]`, in f32."""
        with named(name):
            contents = self._contents(name, shape)
            if isinstance(contents, Levels):
                return stacked_matrices(contents, self._parts(name)[0].shape)
            return _stored(contents).cast(F32)

    def column(self, x: Operand, name: str) -> Operand:
        """Multiplies rows `x` `[n, depth]` with the vector `name`; returns f32 `[n, 1]`."""
        depth = x.extent(-1)
        with named(name):
            is_vector = len(self._parts(name)[0].shape) == 1
            weights = _stored(self._contents(name, (depth,) if is_vector else (1, depth)))
            return x @ weights.cast(F32).reshape((x.shape[-1], 1))

    def rows(self, name: str) -> int:
        """Returns the number of rows of the matrix `name`."""
        return self._parts(name)[0].shape[0]

    def check_all_read(self) -> None:
        """Raises `UserError` if a tensor has not been read."""
        for name, parts in self._tensors.items():
            if name not in self._read:
                raise unknown_tensor(self._checkpoint, parts[0].name, self._config.family)

    # ---- contents -------------------------------------------------------------------------------

    def _parts(self, name: str) -> Sequence[Weight]:
        if name not in self._tensors:
            raise UserError(
                "a tensor of the model is missing",
                where=f"{self._checkpoint.where}: {name}",
                hint="download the model again, with all of its files",
            )
        return self._tensors[name]

    def _contents(self, name: str, shape: Sequence[int | None]) -> Array | Levels:
        """Returns a tensor; matrices of experts that are tensors of their own are stacked."""
        parts = self._parts(name)
        self._read.add(name)
        is_stack = len(parts[0].shape) < len(shape)
        arrays = [self._read_one(part, name, shape[is_stack:]) for part in parts]
        if not is_stack:
            return self._in_order(name, arrays[0])
        matrices = [array for array in arrays if not isinstance(array, Levels)]
        return np.stack(matrices)

    def _read_one(self, part: Weight, name: str, shape: Sequence[int | None]) -> Array | Levels:
        is_transposed = self._is_folder and name.split(".")[-2] in self._config.family.transposed
        is_transposed &= len(shape) == 2
        stored = part.shape[::-1] if is_transposed else part.shape
        fits = len(stored) == len(shape) and all(d in (None, n) for d, n in aligned(shape, stored))
        contents = part.read() if fits else None
        is_known = isinstance(contents, Levels) or part.stored in _STORED
        if contents is None or not is_known:
            raise UserError(
                "a tensor of the model does not fit",
                where=f"{self._checkpoint.where}: {part.name[:200]}",
                why=f"it has the type {part.stored} and the shape {list(part.shape)}; due is "
                f"{list(shape)}, stored in {', '.join(_STORED)} or in quantised blocks",
            )
        if isinstance(contents, Levels):
            return contents
        return contents.T if is_transposed else contents

    def _in_order(self, name: str, contents: Array | Levels) -> Array | Levels:
        """Returns a tensor whose heads have the two halves of rotated pairs apart."""
        config = self._config
        heads = {"attn_q": config.heads, "attn_k": config.key_heads}.get(name.split(".")[-2])
        if heads is None or self._is_folder or not config.family.adjacent:
            return contents
        if config.rotary is None or config.rotary.dims != config.head_width:
            raise Refusal(f"only a part of each head of {name} is rotated")
        order = np.arange(heads * config.head_width).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        if not isinstance(contents, Levels):
            return contents[order]
        parts = {name: getattr(contents, name) for name in field_names(contents)}
        arrays = {n: part[order] for n, part in parts.items() if isinstance(part, np.ndarray)}
        return replace(contents, **arrays)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Gives the constants and results of the enclosed nodes a name."""
    part = current()
    before, part.names = part.names, (name,)
    try:
        yield
    finally:
        part.names = before


def _stored(contents: Array | Levels) -> Operand:
    """Returns an array as a constant of its stored type."""
    if isinstance(contents, Levels):
        raise Refusal("a vector is stored in quantised blocks")
    if contents.dtype == np.uint16:
        return constant(bf16_values(contents), BF16)
    return constant(contents, dtype_of(contents))
