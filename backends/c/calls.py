"""Calls of C functions of the runtime: their operands, and the memory they need for temporaries."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tcc.backends.c.storage import Storage
from tcc.errors import UserError
from tcc.ir.program import CallOp, Register, TensorRef

# What needs a heap, or gives results of sizes that data decide.
REFUSED = frozenset({"tf_idf", "unique", "unique_count"})
# Bytes of temporaries for each element of the operands, and beside them: sorting takes most, two
# times a key and an index.  Where a function wants more, it says so and the model returns an error.
_SHARE, _BESIDE = 40, 1 << 12


def call_lines(
    call: CallOp, storage: Storage, value: Callable[[Register], str]
) -> tuple[list[str], int]:
    """The lines before the function is called, an open brace first, and the bytes it may need.

    Raises UserError for functions on strings and lists, and where sizes are not known.
    """
    if call.op in REFUSED or call.op.startswith(("string_", "list_")):
        raise UserError(
            "a function of the model needs a heap, which C files have not",
            where=call.op,
            hint="compile for the CPU",
        )
    lines = ["{", f"    /* {call.op} */"]
    room = _BESIDE
    sides = (("inputs", call.inputs), ("outputs", call.outputs))
    for side, refs in sides:
        for n, ref in enumerate(refs):
            dims = ", ".join(map(value, ref.dims)) or "1"
            lines.append(f"    const int64_t {side}_{n}[] = {{{dims}}};")
            sizes = [int(text) for text in map(value, ref.dims) if text.isdigit()]
            room += _SHARE * prod(sizes)
        listed = ", ".join(
            _tensor(ref, f"{side}_{n}", storage, value) for n, ref in enumerate(refs)
        )
        if refs:
            lines.append(f"    const tcc_op_tensor {side}[] = {{{listed}}};")
    if call.ints:
        lines.append(f"    const int64_t ints[] = {{{', '.join(map(_number, call.ints))}}};")
    if call.results:
        lines.append(f"    int64_t results[{len(call.results)}];")
    lines.append("    tcc_pool pool = {temporaries, sizeof temporaries, 0};")
    named = [f".{side} = {side}, .n_{side} = {len(refs)}" for side, refs in sides if refs]
    named += [f".ints = ints, .n_ints = {len(call.ints)}"] if call.ints else []
    named += [f".results = results, .n_results = {len(call.results)}"] if call.results else []
    lines.append(f"    tcc_op_call call = {{{', '.join(named)}, .pool = &pool, .threads = 1}};")
    return lines, room


def _number(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"INT64_C({value})" if abs(value) >> 31 else str(value)


def _tensor(ref: TensorRef, dims: str, storage: Storage, value: Callable[[Register], str]) -> str:
    dtype = ref.dtype
    count = " * ".join(f"(int64_t){value(dim)}" for dim in ref.dims) or "1"
    name = storage.names[ref.buffer]
    place = f"(void *)({name})" if ref.buffer in storage.constant or " " in name else name
    kind = f"{{{dtype.dlpack}, {dtype.bits}, 1}}"
    return f"{{{place}, {kind}, {len(ref.dims)}, {dims}, {count}}}"
