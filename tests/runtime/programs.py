"""Hand-made programs and C kernels: what a compiler would give, small enough to check by eye."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tcc.backends.host import encode_program
from tcc.backends.link import BytesLike, link_artifact
from tcc.ir.program import (
    Allocate,
    Buffer,
    BufferId,
    Instr,
    IntOp,
    Launch,
    Let,
    Output,
    Place,
    Port,
    Program,
    Register,
)
from tcc.ir.types import DTYPES

KERNELS = r"""
#include <stdint.h>
#define KERNEL(name) __attribute__((visibility("hidden"))) void name(void *const *b, \
    const int64_t *n, int64_t begin, int64_t end, void *scratch)
/* y[u] = max(x[u], 0) */
KERNEL(relu) {
    const float *x = b[0]; float *y = b[1]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = x[u] > 0 ? x[u] : 0;
}
/* c[u] = a[u] + b[u] */
KERNEL(add) {
    const float *x = b[0], *w = b[1]; float *y = b[2]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = x[u] + w[u];
}
/* row u of y = row u of x times i, over n[0] columns, through scratch */
KERNEL(scale_rows) {
    const float *x = b[0]; float *y = b[1], *room = scratch;
    for (int64_t u = begin; u < end; u++) {
        for (int64_t i = 0; i < n[0]; i++) room[i] = x[u * n[0] + i] * (float)n[1];
        for (int64_t i = 0; i < n[0]; i++) y[u * n[0] + i] = room[i];
    }
}
/* total += x[0]; y[0] = total */
KERNEL(accumulate) {
    const float *x = b[0]; float *total = b[1], *y = b[2]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) { *total += *x; *y = *total; }
}
/* flag = x[0] > 0 */
KERNEL(positive) {
    const float *x = b[0]; uint8_t *flag = b[1]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) *flag = x[0] > 0;
}
/* y[u] = n[0] */
KERNEL(fill) {
    float *y = b[0]; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = (float)n[0];
}
/* y[u] = sum of a slow series that depends on u only */
KERNEL(slow) {
    const float *x = b[0]; float *y = b[1]; (void)scratch;
    for (int64_t u = begin; u < end; u++) {
        float sum = 0;
        for (int64_t i = 0; i < n[0]; i++) sum = sum * 0.5f + x[u];
        y[u] = sum;
    }
}
"""
KERNEL_NAMES = ("relu", "add", "scale_rows", "accumulate", "positive", "fill", "slow")


@dataclass
class Builder:
    """Collects registers, buffers, ports and instructions."""

    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    registers: int = 0
    scratch: int = 0
    arena: Register = 0

    def __post_init__(self) -> None:
        self.arena = self.let(IntOp.CONST, 0)

    def register(self) -> Register:
        self.registers += 1
        return self.registers - 1

    def let(self, op: IntOp, a: int, b: int = 0) -> Register:
        target = self.register()
        self.body.append(Let(target, op, a, b))
        return target

    def const(self, value: int) -> Register:
        return self.let(IntOp.CONST, value)

    def buffer(self, place: Place, label: str = "") -> BufferId:
        self.buffers.append(Buffer(place, label))
        return len(self.buffers) - 1

    def input(self, name: str, dtype: str, dims: Sequence[Register], text: str) -> int:
        self.inputs.append(Port(name, DTYPES[dtype], tuple(dims), text))
        return len(self.inputs) - 1

    def output(
        self, name: str, dtype: str, dims: Sequence[Register], text: str, state: int = -1
    ) -> BufferId:
        self.outputs.append(Port(name, DTYPES[dtype], tuple(dims), text, state))
        return self.buffer(Output(len(self.outputs) - 1), name)

    def allocate(self, buffer: BufferId, size: Register, keep: bool = False) -> None:
        self.body.append(Allocate(buffer, size, keep))

    def launch(
        self,
        kernel: str,
        grid: Register,
        buffers: Sequence[BufferId],
        ints: Sequence[Register] = (),
        serial: bool = False,
    ) -> None:
        number = KERNEL_NAMES.index(kernel)
        self.body.append(Launch(number, grid, tuple(buffers), tuple(ints), serial))

    def program(self) -> Program:
        return Program(
            tuple(self.inputs), tuple(self.outputs), self.registers, tuple(self.buffers),
            KERNEL_NAMES, self.scratch, self.arena, tuple(self.body),
        )  # fmt: skip


def compile_kernels(folder: Path) -> bytes:
    """The object with all of KERNELS."""
    (folder / "kernels.c").write_text(KERNELS)
    command = ("cc", "-O2", "-fPIC", "-std=c11", "-Wall", "-Werror", "-c", "kernels.c", "-o", "k.o")
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "k.o").read_bytes()


def link(
    program: Program,
    kernels: bytes,
    out: Path,
    *,
    name: str = "mini",
    weights: Sequence[BytesLike] = (),
    features: Sequence[str] = (),
    side_file: bool = False,
) -> dict[str, Any]:
    """Links a hand-made program as the driver would; returns the manifest."""
    return link_artifact(
        [kernels], encode_program(program), program.kernels, {"tcc": "test"}, weights, name, out,
        features, side_file=side_file,
    )  # fmt: skip
