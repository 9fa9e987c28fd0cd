"""The calibration's loops as LLVM text; each exercises one resource.

    i64 spin(i64 n)                            16 n additions and rotations, one after the other
    void multiply(ptr data, i64 n)             UNROLL n vector multiply-adds, independent
    void chain(ptr data, i64 n)                UNROLL n vector multiply-adds, one after the other
    void read(ptr data, i64 vectors, i64 n)    n times all vectors, in order
    void ahead(ptr data, i64 vectors, i64 n)   n times all vectors, block by block of 8 pages: reads
                                               the first cache line of each page, then the second,
                                               ..., and prefetches the same line of the next block
    void write(ptr data, i64 vectors, i64 n)   n times all vectors, storing in order
    ptr chase(ptr data, i64 n)                 n loads, each from the address that the last one gave

`data` is 64-byte aligned, but 4-byte aligned for `read`. Counts are positive. `vectors` is a
multiple of UNROLL, for `ahead` of the vectors in BLOCK bytes. Loads and stores are volatile, so
that the code generator neither drops nor merges them.
"""

from tcc.backends.cpu.instructions import llvm_features
from tcc.runtime.loop_times import BLOCK, PAGE, STREAMS, UNROLL
from tcc.target import Target

_LINE = 64


def loops_text(target: Target) -> str:
    """Returns the LLVM module with all loops."""
    vector = f"<{target.profile.lanes(32)} x float>"
    size = target.profile.vector_bits // 8
    load = f"  %v{{k}} = load volatile {vector}, ptr %p{{k}}, align 4"
    store = f"  store volatile {vector} zeroinitializer, ptr %p{{k}}, align {size}"
    bodies = (
        _spin(),
        _multiply("multiply", vector, target.profile.fma, chained=False),
        _multiply("chain", vector, target.profile.fma, chained=True),
        _stream("read", load, size, UNROLL),
        _stream("ahead", load, size, STREAMS * _LINE // size, _prefetches()),
        _stream("write", store, size, UNROLL),
        _chase(),
    )
    attributes = (
        f'attributes #0 = {{ nounwind "target-cpu"="{target.profile.cpu}" '
        f'"target-features"="{llvm_features(target.profile)}" '
        f'"prefer-vector-width"="{target.profile.vector_bits}" }}'
    )
    declarations = (
        f"declare {vector} @llvm.fma.v{target.profile.lanes(32)}f32({vector}, {vector}, {vector})\n"
        "declare i64 @llvm.fshl.i64(i64, i64, i64)\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    )
    parts = (f'target triple = "{target.triple}"', declarations, *bodies, attributes)
    return "\n\n".join(parts) + "\n"


def _counted(name: str, params: str, result: str, phis: str, body: str, tail: str) -> str:
    """Returns the text of a function with a loop `for %i in 0..%n`; `phis` are its carried
    values."""
    return (
        f"define {result} @{name}({params}) #0 {{\nentry:\n  br label %loop\nloop:\n"
        f"  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]\n{phis}\n{body}\n"
        "  %i.next = add i64 %i, 1\n  %more = icmp slt i64 %i.next, %n\n"
        f"  br i1 %more, label %loop, label %done\ndone:\n{tail}\n}}"
    )


def _spin() -> str:
    lines = []
    for k in range(16):
        lines.append(
            f"  %a{k} = add i64 %x{k}, %i\n"
            f"  %x{k + 1} = call i64 @llvm.fshl.i64(i64 %a{k}, i64 %a{k}, i64 7)"
        )
    phi = "  %x0 = phi i64 [ %n, %entry ], [ %x16, %loop ]"
    return _counted("spin", "i64 %n", "i64", phi, "\n".join(lines), "  ret i64 %x16")


def _multiply(name: str, vector: str, fma: bool, *, chained: bool) -> str:
    def step(out: str, acc: str) -> str:
        if fma:
            lanes = vector[1:].split()[0]
            call = f"@llvm.fma.v{lanes}f32({vector} %a, {vector} %b, {vector} {acc})"
            return f"  {out} = call {vector} {call}"
        return f"  {out}.p = fmul {vector} %a, {acc}\n  {out} = fadd {vector} {out}.p, %b"

    loads = (
        f"  %a = load volatile {vector}, ptr %data, align 64\n"
        f"  %b = load volatile {vector}, ptr %data, align 64"
    )
    sums = 1 if chained else UNROLL
    start = f"phi {vector} [ zeroinitializer, %entry ]"
    phis = [f"  %c{k} = {start}, [ %d{k}, %loop ]" for k in range(sums)]
    if chained:
        names = ["%c0", *(f"%e{k}" for k in range(1, UNROLL)), "%d0"]
        steps = [step(names[k + 1], names[k]) for k in range(UNROLL)]
    else:
        steps = [step(f"%d{k}", f"%c{k}") for k in range(UNROLL)]
    stores = "\n".join(f"  store volatile {vector} %d{k}, ptr %data, align 64" for k in range(sums))
    text = _counted(
        name, "ptr %data, i64 %n", "void", "\n".join(phis), "\n".join(steps),
        f"{stores}\n  ret void",
    )  # fmt: skip
    return text.replace("entry:\n", f"entry:\n{loads}\n", 1)


def _stream(name: str, access: str, size: int, step: int, before: str = "") -> str:
    """Returns the text of a function that passes %n times over all vectors, in steps.

    Each iteration runs `before`, and then `access` for each of `step` vectors of `size` bytes. In
    `before`, %o is the offset in bytes of the first vector; in `access`, {k} is the number of a
    vector, and %p{k} its address.
    """
    accesses = "\n".join(
        f"  %p{k} = getelementptr i8, ptr %q, i64 {k * size}\n" + access.format(k=k)
        for k in range(step)
    )
    return (
        f"define void @{name}(ptr %data, i64 %vectors, i64 %n) #0 {{\nentry:\n  br label %again\n"
        "again:\n  %i = phi i64 [ 0, %entry ], [ %i.next, %end ]\n  br label %loop\n"
        "loop:\n  %v = phi i64 [ 0, %again ], [ %v.next, %loop ]\n"
        f"  %o = mul i64 %v, {size}\n  %q = getelementptr i8, ptr %data, i64 %o\n"
        f"{before}{accesses}\n"
        f"  %v.next = add i64 %v, {step}\n  %inside = icmp slt i64 %v.next, %vectors\n"
        "  br i1 %inside, label %loop, label %end\n"
        "end:\n  %i.next = add i64 %i, 1\n  %more = icmp slt i64 %i.next, %n\n"
        "  br i1 %more, label %again, label %done\ndone:\n  ret void\n}"
    )


def _prefetches() -> str:
    """Returns the text that prefetches the lines of the next block of pages."""
    place = (
        f"  %in = and i64 %o, {BLOCK - 1}\n  %block = sub i64 %o, %in\n"
        f"  %line = udiv i64 %in, {STREAMS}\n  %far = add i64 %block, %line\n"
    )
    return place + "".join(
        f"  %far{k} = add i64 %far, {BLOCK + k * PAGE}\n"
        f"  %a{k} = getelementptr i8, ptr %data, i64 %far{k}\n"
        f"  call void @llvm.prefetch.p0(ptr %a{k}, i32 0, i32 3, i32 1)\n"
        for k in range(STREAMS)
    )


def _chase() -> str:
    phi = "  %p = phi ptr [ %data, %entry ], [ %next, %loop ]"
    body = "  %next = load volatile ptr, ptr %p, align 8"
    return _counted("chase", "ptr %data, i64 %n", "ptr", phi, body, "  ret ptr %next")
