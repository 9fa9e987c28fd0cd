"""The contents of a model file or folder before the import: facts, weights and assets."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.op import Array
from tcc.ir.types import DType


@frozen
class Levels:
    """A matrix `[rows, columns]` of small integers with a scale for each group of columns.

    `rows` counts the rows of all matrices of a tensor with more than two axes. An element has the
    f32 value

        ((levels + 16 * high) - zero) * (scales * units) + minimums * minimum_units

    where absent arrays leave out their part. The product of a scale and its unit, and the first
    product with a level, are exact in f32 for all types that tcc reads, so the sum alone rounds.

    `levels` are integers `[rows, columns]` in the carrier of `dtype`, which is i8 or u4. `high` are
    the `high_bits` upper bits of levels that have more than 4, as u8 of the same shape.
    `scales` and `minimums` are `[rows, columns // group]`, in f16 or f32; with units they are i8 or
    u8. `units` and `minimum_units` are f16, `[rows, columns // 256]`.
    """

    levels: Array
    dtype: DType
    scales: Array
    minimums: Array | None
    zero: int
    group: int
    high: Array | None = None
    units: Array | None = None
    minimum_units: Array | None = None
    high_bits: int = 0


@frozen
class StoredTensor:
    """A tensor of a model file.

    `name` is the file's name for it. `shape` begins with the outermost axis: `[out, in]` for a
    matrix. `type_name` is the file's type, such as "F32" or "Q4_1". `load` reads this tensor alone.
    It returns `Levels` of a quantised type, and for another type an array as a view of the file.
    The array of a "BF16" tensor holds the bits of its elements as u16.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    load: Callable[[], Array | Levels]


@frozen
class Checkpoint:
    """A model file or folder.

    `form` is "gguf" or "folder". `facts` are GGUF's key-value fields, or the contents of
    config.json. `weights` are the tensors by name. `where` is the path, for errors. `assets` reads
    files for the artifact, by name, and raises `UserError` where they are damaged:

    - "tokenizer.json": the tokenizer, as the library tokenizers reads it
    - "chat_template.jinja": the template of a conversation
    - "generation.json": `{"bos": ID or null, "eos": [IDs], "context": tokens or null}`

    A model without a tokenizer or a template lacks these names.
    """

    form: str
    facts: Mapping[str, Any]
    weights: Mapping[str, StoredTensor]
    assets: Callable[[], Mapping[str, bytes]]
    where: str


@contextmanager
def readable(path: str | os.PathLike[str], hint: str) -> Iterator[None]:
    """Turns errors of reading a file or folder into a `UserError` with a hint."""
    try:
        yield
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(
            "the model cannot be read", where=os.fspath(path), why=str(error)[:500], hint=hint
        ) from error


def library(name: str) -> Any:
    """Imports an optional library at its first use; raises `UserError` where it is missing."""
    if find_spec(name) is None:
        raise UserError(f"this model needs the library {name}", hint="pip install 'tcc[lm]'")
    return import_module(name)
