"""Calls of the runtime's C functions: their operands and their temporary memory."""

from collections.abc import Callable, Sequence
from math import prod

from tcc.backends.c.storage import CStorage
from tcc.backends.c.types import literal
from tcc.errors import UserError
from tcc.ir.program import CallOp, Register, TensorRef
from tcc.ir.types import I64

# Functions that C files refuse, because they need a heap or have results of data-dependent size.
REFUSED = frozenset({"tf_idf", "unique", "unique_count"})
# A call gets `_PER_ELEMENT` bytes of temporary memory for each element of its operands, plus
# `_FIXED` bytes. Sorting needs most: two keys and indices. If a function needs more, it fails and
# the model returns an error.
_PER_ELEMENT, _FIXED = 40, 1 << 12


def call_lines(
    call: CallOp, storage: CStorage, value: Callable[[Register], str]
) -> tuple[list[str], int]:
    """Returns the C lines that prepare a call, and the bytes of temporary memory that it may need.

    `value` returns the C text of a register. Raises UserError for functions on strings and lists,
    and if a size is not known.
    """
    if call.op in REFUSED or call.op.startswith(("string_", "list_")):
        raise UserError(
            "a function of the model needs a heap, which C files have not",
            where=call.op,
            hint="compile for the CPU",
        )
    lines, initializers, room = [f"/* {call.op} */"], [], _FIXED
    for side, refs in (("inputs", call.inputs), ("outputs", call.outputs)):
        tensors = []
        for n, ref in enumerate(refs):
            dims = [value(dim) for dim in ref.dims]
            lines.append(f"const int64_t {side}_{n}[] = {{{', '.join(dims) or '1'}}};")
            room += _PER_ELEMENT * prod(int(dim) for dim in dims if dim.isdigit())
            tensors.append(_tensor(ref, f"{side}_{n}", dims, storage))
        if refs:
            lines.append(f"const tcc_op_tensor {side}[] = {{{', '.join(tensors)}}};")
            initializers.append(f".{side} = {side}, .n_{side} = {len(refs)}")
    if call.ints:
        ints = ", ".join(literal(n, I64) for n in call.ints)
        lines.append(f"const int64_t ints[] = {{{ints}}};")
        initializers.append(f".ints = ints, .n_ints = {len(call.ints)}")
    if call.results:
        lines.append(f"int64_t results[{len(call.results)}];")
        initializers.append(f".results = results, .n_results = {len(call.results)}")
    lines.append("tcc_pool pool = {temporaries, sizeof temporaries, 0};")
    lines.append(f"tcc_op_call call = {{{', '.join(initializers)}, .pool = &pool, .threads = 1}};")
    return lines, room


def _tensor(ref: TensorRef, name: str, dims: Sequence[str], storage: CStorage) -> str:
    dtype, place = ref.dtype, storage.names[ref.buffer]
    count = " * ".join(f"(int64_t){dim}" for dim in dims) or "1"
    if ref.buffer in storage.constant or " " in place:
        place = f"(void *)({place})"
    kind = f"{{{dtype.dlpack}, {dtype.bits}, 1}}"
    return f"{{{place}, {kind}, {len(dims)}, {name}, {count}}}"
