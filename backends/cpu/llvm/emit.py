"""Emits a tile kernel as LLVM IR text.

    void NAME(ptr buffers, ptr ints, i64 begin, i64 end, ptr scratch)

`buffers` holds the addresses of the kernel's buffers, and `ints` its sizes, in order. The function
first runs the statements that are the same for all tiles. Then it computes the tiles from `begin`
to `end` (exclusive), one after another. `scratch` has `KernelText.scratch` bytes, aligned to 64,
that no other thread uses during the call.

The exported function unpacks its arguments and calls an internal function, NAME_units, whose
parameters declare that buffers do not overlap. Some results bypass the caches (nontemporal stores).
If all of them begin at a cache line, it calls the internal function NAME_lines instead.

A kernel whose tiles take long checks for cancellation. It calls a function of the runtime: the
function's address is `buffers[-4]`, and its argument is `buffers[-3]`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tcc.backends.cpu.instructions import llvm_features
from tcc.backends.cpu.llvm.body import Statements
from tcc.backends.cpu.llvm.indices import LlvmIndices
from tcc.backends.cpu.llvm.invariant import same_for_all
from tcc.backends.cpu.llvm.merge_branches import merged
from tcc.backends.cpu.llvm.text import Code, LlvmModule, Reg, int_const
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr import extent
from tcc.ir.index import as_int
from tcc.ir.tile import Load, MemorySpace, Prefetch, TileBuffer, TileKernel, walk_statements
from tcc.target import Target

LINE = 64


@frozen
class KernelText:
    """The LLVM module of a kernel, and the bytes of scratch that a thread needs to run it."""

    name: str
    llvm: str
    scratch: int


def emit_kernel(kernel: TileKernel, name: str, target: Target, seconds: float = 0.0) -> KernelText:
    """Returns the LLVM text of `kernel` as the function `name`.

    `seconds` is the time of a tile if it is so long that the tile must check for cancellation, else
    0. Raises InternalError for constructs that have no code.
    """
    kernel = replace(kernel, body=merged(kernel.body), nontemporal=_nontemporal(kernel, target))
    module = LlvmModule(target)
    offsets, scratch = _place_locals(kernel.locals)
    inner = _inner(kernel, f"{name}_units", module, (), seconds)
    if kernel.nontemporal:
        inner += _inner(kernel, f"{name}_lines", module, kernel.nontemporal, seconds)
    outer = _outer(kernel, name, offsets, asks=seconds > 0)
    text = "\n".join(
        (
            f'target triple = "{target.triple}"',
            module.text(),
            inner,
            outer,
            _attributes(target),
            '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}\n',
        )
    )
    return KernelText(name, text, scratch)


def _attributes(target: Target) -> str:
    pairs = {
        "target-cpu": target.profile.cpu,
        "target-features": llvm_features(target.profile),
        "prefer-vector-width": str(target.profile.vector_bits),
        "no-trapping-math": "true",
    }
    settings = " ".join(f'"{k}"="{v}"' for k, v in pairs.items() if v)
    return f"attributes #0 = {{ nounwind {settings} }}"


def _place_locals(buffers: tuple[TileBuffer, ...]) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each LOCAL buffer in scratch, and the size of scratch, in bytes."""
    offsets, top = [], 0
    for buffer in buffers:
        offsets.append(top)
        sizes = [as_int(size) for size in buffer.sizes]
        if any(size is None for size in sizes):
            raise InternalError(f"local buffer {buffer.name} has no static size")
        count = prod(size for size in sizes if size is not None)
        top += -(-count * buffer.dtype.bytes // LINE) * LINE
    return tuple(offsets), top


def _nontemporal(kernel: TileKernel, target: Target) -> tuple[int, ...]:
    """Returns the positions of the results whose stores bypass the caches.

    The kernel itself neither loads nor prefetches them.
    """
    if kernel.in_place or target.profile.arch != "x86-64":
        return ()
    loaded = {s.buffer for s in walk_statements(kernel.body) if isinstance(s, Load | Prefetch)}
    return tuple(n for n in kernel.nontemporal if kernel.buffers[n] not in loaded)


# ---- the exported function --------------------------------------------------------------------


def _outer(kernel: TileKernel, name: str, offsets: tuple[int, ...], *, asks: bool) -> str:
    lines, args = [], []
    for at, hook in ((-4, "ask"), (-3, "asked")) if asks else ():
        lines.append(
            f"  %{hook}.at = getelementptr ptr, ptr %buffers, i64 {at}\n"
            f"  %{hook} = load ptr, ptr %{hook}.at, align 8"
        )
        args.append(f"ptr %{hook}")
    for n in range(len(kernel.buffers)):
        lines.append(
            f"  %p{n} = getelementptr ptr, ptr %buffers, i64 {n}\n"
            f"  %b{n} = load ptr, ptr %p{n}, align 8"
        )
        args.append(f"ptr %b{n}")
    for n, offset in enumerate(offsets):
        lines.append(f"  %l{n} = getelementptr i8, ptr %scratch, i64 {offset}")
        args.append(f"ptr %l{n}")
    for n in range(len(kernel.sizes)):
        lines.append(
            f"  %q{n} = getelementptr i64, ptr %ints, i64 {n}\n"
            f"  %s{n} = load i64, ptr %q{n}, align 8"
        )
        args.append(f"i64 %s{n}")
    arguments = ", ".join((*args, "i64 %begin", "i64 %end"))
    if kernel.nontemporal:
        address = "0"
        for n in kernel.nontemporal:
            lines.append(f"  %a{n} = ptrtoint ptr %b{n} to i64\n  %o{n} = or i64 %a{n}, {address}")
            address = f"%o{n}"
        lines.append(
            f"  %in = and i64 {address}, {LINE - 1}\n  %whole = icmp eq i64 %in, 0\n"
            "  br i1 %whole, label %lines, label %units\nlines:\n"
            f"  call void @{name}_lines({arguments})\n  ret void\nunits:"
        )
    return (
        f"define void @{name}(ptr %buffers, ptr %ints, i64 %begin, i64 %end, ptr %scratch) #0 {{\n"
        + "\n".join(lines)
        + f"\n  call void @{name}_units({arguments})\n  ret void\n}}"
    )


# ---- the internal function --------------------------------------------------------------------


def _inner(
    kernel: TileKernel, name: str, module: LlvmModule, nontemporal: Sequence[int], seconds: float
) -> str:
    """Returns the text of the internal function `name`.

    `nontemporal` are the positions of the buffers whose stores bypass the caches.
    """
    code = Code(module, [kernel.buffers[n] for n in nontemporal])
    indices = LlvmIndices(code)
    buffers: dict[TileBuffer, Reg] = {}
    params = ["ptr %ask", "ptr %asked"] if seconds else []
    shared = {n for pair in kernel.in_place for n in pair}
    for n, buffer in enumerate((*kernel.buffers, *kernel.locals)):
        buffers[buffer] = Reg("ptr", 1, f"%b{n}")
        read_only = " readonly" if buffer.scope is MemorySpace.INPUT else ""
        is_aligned = buffer.is_local or n in nontemporal
        align = LINE if is_aligned else buffer.align
        no_alias = "" if n in shared else " noalias"
        params.append(f"ptr{no_alias}{read_only} align {align} %b{n}")
    for n, size in enumerate(kernel.sizes):
        indices.values[size.name] = Reg("i64", 1, f"%s{n}")
        params.append(f"i64 %s{n}")
    params += ["i64 %begin", "i64 %end"]
    begin, end, tile, following = (Reg("i64", 1, f"%{n}") for n in ("begin", "end", "u", "u.next"))
    any_tile = code.compare("icmp slt", begin, end)
    code.branch(any_tile, "first", "done")
    code.place("first")
    statements, once = Statements(indices, buffers, seconds), same_for_all(kernel)
    statements.plan(kernel.body)
    statements.run(kernel.body[:once])
    code.jump("units")
    code.place("units")
    code.jump("unit")
    code.place("unit")
    code.void("%u = phi i64 [ %begin, %units ], [ %u.next, %unit.end ]")
    with code.scope():
        _decode(kernel, indices, tile)
        statements.run(kernel.body[once:])
        code.jump("unit.end")
    code.place("unit.end")
    code.void("%u.next = add nuw nsw i64 %u, 1")
    goes_on = code.compare("icmp slt", following, end)
    code.void(f"br {goes_on}, label %unit, label %done, !llvm.loop !0")
    code.place("done")
    if nontemporal:  # without a fence, other threads could see later stores before nontemporal ones
        module.add("sfence", lambda: "declare void @llvm.x86.sse.sfence()\n!2 = !{i32 1}")
        code.void("call void @llvm.x86.sse.sfence()")
    code.void("ret void")
    head = f"define internal void @{name}({', '.join(params)}) noinline #0 {{\nentry:\n"
    return head + code.text() + "\n}"


def _decode(kernel: TileKernel, indices: LlvmIndices, tile: Reg) -> None:
    """Binds the parallel axes to the position of tile number `tile`; tiles are in row-major
    order."""
    code, quotient = indices.code, tile
    for number, axis in reversed(list(enumerate(kernel.axes))):
        if number == 0:
            indices.values[axis.name] = quotient
            continue
        size = indices.emit(extent(axis))
        indices.values[axis.name] = (
            int_const(0) if size.text == "1" else code.op("urem", quotient, size)
        )
        quotient = code.op("udiv", quotient, size)
