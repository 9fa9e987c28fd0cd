"""Runs the function of a C file on an Arm Cortex-M3 without an operating system, in qemu."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tcc.ir.graph import Graph
from tcc.ir.index import as_int

from tests.lib.op_matrix.cases import Array

from .run_c import STRICT, as_bytes, from_bytes

TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]

# The processor starts in the memory of code and constants; the rest lies in the other memory.
LAYOUT = """
ENTRY(_start)
MEMORY { code : ORIGIN = 0, LENGTH = 4M  data : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.init*) *(.fini*) } > code
  .rest : { *(.ARM*) *(.eh_frame*) } > code
  .data : { *(.data*) } > data
  .bss : { __bss_start__ = .; *(.bss*) *(COMMON) __bss_end__ = .; } > data
  end = .; __end__ = .;
  __stack = 0x20400000;
}
"""
MAIN = """
#include <stdio.h>
#include "m.h"
extern void _start(void);
extern char __stack;
__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    &__stack, (const void *)_start};
%s
static void show(const unsigned char *bytes, int count) {
    for (int n = 0; n < count; n++) printf("%%02x", bytes[n]);
    printf("\\n");
}
int main(void) {
    printf("status %%d\\n", m_run(%s));
%s    return 0;
}
"""


def run_on_board(source: Path, graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Runs the function `m_run` of `source` with the inputs in the program; returns the outputs."""
    arrays, names, shows = [], [], []
    for n, value in enumerate(graph.inputs):
        data = as_bytes(feeds[value.name], value.type.dtype)
        text = ", ".join(map(str, data.tolist()))
        arrays.append(f"static _Alignas(8) unsigned char in{n}[] = {{{text}}};")
        names.append(f"(void *)in{n}")
    for n, value in enumerate(graph.outputs):
        count = int(np.prod([as_int(dim) or 0 for dim in value.type.shape]))
        size = (count * value.type.dtype.bits + 7) // 8
        arrays.append(f"static _Alignas(8) unsigned char out{n}[{size}];")
        names.append(f"(void *)out{n}")
        shows.append(f"    show(out{n}, {size});\n")
    folder = source.parent
    (folder / "main.c").write_text(MAIN % ("\n".join(arrays), ", ".join(names), "".join(shows)))
    (folder / "board.ld").write_text(LAYOUT)
    compiler = ["arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-O1"]
    run([*compiler, *STRICT, "-c", "-o", folder / "m.o", source])
    elf = folder / "m.elf"
    flags = ["--specs=rdimon.specs", "-T", folder / "board.ld", "-Wl,--no-warn-rwx-segments"]
    run([*compiler, *flags, "-o", elf, folder / "main.c", folder / "m.o", "-lm"])
    machine = ["qemu-system-arm", "-M", "mps2-an385", "-nographic", "-semihosting", "-kernel", elf]
    status, *lines = run(machine).split()[1:]
    assert status == "0"
    payloads = (np.frombuffer(bytes.fromhex(line), np.uint8) for line in lines)
    return {v.name: from_bytes(data, v) for v, data in zip(graph.outputs, payloads, strict=True)}


def run(command: list[object]) -> str:
    """Returns the text that a command prints; the command must succeed within a minute."""
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr[:4000]
    return process.stdout
