"""A lowered model as one C11 file and its header.

constants, static memory      what the kernels read and write
support                       functions of `support.c` and of the runtime that are called
kernel_0, kernel_1, ...       one function a kernel
NAME_run                      the program
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tcc.backends.artifact.header import comment_text
from tcc.backends.c.header import IN_FILE, declaration, header_text
from tcc.backends.c.kernel import kernel_function
from tcc.backends.c.names import Names
from tcc.backends.c.program import ProgramPrinter, known_registers
from tcc.backends.c.sources import needed
from tcc.backends.c.storage import Storage, element_types, place_buffers
from tcc.errors import UserError
from tcc.ir.op import Array
from tcc.ir.program import Input, Output, Program
from tcc.ir.tile import TileKernel
from tcc.record import record

# Weights up to so many bytes are in the C file: a compiler takes seconds for them.
MOST_IN_FILE = 16 << 20
_LINE = 96


@record
class CFiles:
    """The C file and its header as texts, and the bytes of the file of weights, if there is one."""

    source: str
    header: str
    weights: bytes
    memory: int


def print_model(
    name: str,
    program: Program,
    kernels: Sequence[TileKernel],
    comments: Sequence[str],
    section: bytes,
    *,
    beside: bool = False,
) -> CFiles:
    """The files of a model called `name`.  `comments` say which nodes a kernel computes; weights
    that are large, or `beside`, are a file of their own.

    Raises UserError for what needs memory that is not known before the run.
    """
    _check_ports(program)
    names = Names(frozenset({f"{name}_run", f"{name}_weights", "temporaries"}))
    called = [names.fresh(f"kernel_{number}") for number in range(len(kernels))]
    functions = [
        kernel_function(kernel, own, _comment(f"{own}: {nodes}"))
        for kernel, own, nodes in zip(kernels, called, comments, strict=True)
    ]
    known = known_registers(program)
    ports = {
        "inputs": [names.fresh(port.name) for port in program.inputs],
        "outputs": [names.fresh(port.name) for port in program.outputs],
    }
    storage = place_buffers(
        program,
        element_types(program, kernels, functions),
        known,
        {Input: ports["inputs"], Output: ports["outputs"]},
        names,
    )
    beside = beside or len(section) > MOST_IN_FILE
    constants = list(_constants(name, storage, section, beside))
    printer = ProgramPrinter(program, storage, kernels, functions, called, known)
    lines = printer.lines()
    declared = storage.declarations
    if printer.room:
        declared.append(f"static _Alignas(16) unsigned char temporaries[{printer.room}];")
    head = declaration(name, program, ports)
    run = "\n".join([head, "{", *_unused(head, lines, ports), *lines, "}"])
    body = "\n\n".join([*(f.text for f in functions), run])
    memory = storage.bytes + printer.room + sum(f.scratch for f in functions)
    place = IN_FILE
    if beside:
        place = f"read from {name}_weights: set it to the bytes of the file of weights, aligned"
    sections = [
        f"/* {name}: a model compiled by tcc; {name}.h says how to call it.\n *\n"
        " * Floats are those of IEEE 754: compile without -ffast-math, and without contraction of\n"
        " * a * b + c (gcc has it off with -std=c11, else -ffp-contract=off). */",
        f'#include "{name}.h"\n\n#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>\n'
        "#include <stdint.h>\n#include <string.h>",
        _CONTRACTION,
        *constants,
        "\n".join(declared),
        *needed(body),
        body,
    ]
    source = "\n\n".join(part for part in sections if part) + "\n"
    weights = (len(section), place)
    header = header_text(name, program, ports, known, printer.messages, memory, weights)
    return CFiles(source, header, section if beside else b"", memory)


_CONTRACTION = "#if !defined(__GNUC__) || defined(__clang__)\n#pragma STDC FP_CONTRACT OFF\n#endif"


def _check_ports(program: Program) -> None:
    for port in program.outputs:
        if port.state >= 0:
            raise UserError("C files keep no state", where=port.name, hint="leave out --state")


def _comment(text: str) -> list[str]:
    """A comment of lines that are not too long."""
    lines, line = [], "/*"
    for word in comment_text(text).split():
        if len(line) + len(word) > _LINE:
            lines.append(line)
            line = " *"
        line += f" {word}"
    return [*lines, line + " */"]


def _unused(head: str, lines: Sequence[str], ports: dict[str, list[str]]) -> Iterator[str]:
    """Statements that name the arguments which nothing else does."""
    text = "\n".join(lines)
    for argument in (*ports["inputs"], *ports["outputs"]):
        if argument not in text:
            yield f"    (void){argument};"


def _constants(name: str, storage: Storage, section: bytes, beside: bool) -> Iterator[str]:
    """Each weight as an array, or as a pointer into those beside."""
    if beside:
        yield f"const unsigned char *{name}_weights;"
    done = set()
    for number, (own, kind, offset, size) in storage.weights.items():
        if beside:
            storage.names[number] = f"(const {kind} *)(const void *)({name}_weights + {offset})"
        elif own not in done:
            done.add(own)
            values = np.frombuffer(section, _NUMPY[kind], size // _NUMPY[kind].itemsize, offset)
            yield _array(own, kind, values)


_NUMPY: dict[str, np.dtype[Any]] = {
    kind: np.dtype(numpy)
    for kind, numpy in (
        ("float", "float32"),
        ("double", "float64"),
        *((f"{u}int{n}_t", f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)),
    )
}


def _array(name: str, kind: str, values: Array) -> str:
    texts = [_value(v, kind) for v in values] or ["0"]
    lines, line = [], "   "
    for text in texts:
        if len(line) + len(text) > _LINE:
            lines.append(line)
            line = "   "
        line += f" {text},"
    return "\n".join(
        [f"static const {kind} {name}[{len(texts)}] = {{", *lines, line.rstrip(","), "};"]
    )


def _value(value: Any, kind: str) -> str:
    if kind in ("float", "double"):
        if np.isnan(value):
            return "NAN"
        if np.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        return f"{value!s}f" if kind == "float" else str(value)
    if kind == "uint64_t":
        return f"UINT64_C({value})"
    if kind == "int64_t":
        return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"
    if kind == "int32_t" and value == -(1 << 31):
        return "INT32_MIN"
    return f"{value}u" if kind == "uint32_t" else str(value)
