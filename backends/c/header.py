"""The header of a C file: one function, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tcc.backends.artifact.header import comment_text
from tcc.backends.c.types import memory_type
from tcc.ir.program import Program, Register


def declaration(name: str, program: Program, ports: Mapping[str, Sequence[str]]) -> str:
    """The function that runs the model, without a semicolon."""
    taken = [
        f"const {memory_type(port.dtype)} *{argument}"
        for port, argument in zip(program.inputs, ports["inputs"], strict=True)
    ]
    taken += [
        f"{memory_type(port.dtype)} *{argument}"
        for port, argument in zip(program.outputs, ports["outputs"], strict=True)
    ]
    return f"int {name}_run({', '.join(taken) or 'void'})"


def header_text(
    name: str,
    program: Program,
    ports: Mapping[str, Sequence[str]],
    known: Mapping[Register, int],
    messages: Sequence[str],
    memory: int,
    weights: tuple[int, str],
) -> str:
    """The header; `memory` are the bytes of static arrays, `weights` bytes and where they are."""
    upper = name.upper()
    lines = [
        f"/* {name}: a model compiled by tcc.",
        " *",
        f" * {name}_run computes the outputs from the inputs.  All arrays are the caller's,",
        " * contiguous and row-major; they do not overlap, and nothing is kept after a call.",
        " *",
    ]
    sides = (("input", program.inputs, "read"), ("output", program.outputs, "written"))
    for side, listed, done in sides:
        for port, argument in zip(listed, ports[f"{side}s"], strict=True):
            sizes = [known[dim] for dim in port.dims]
            shape = ", ".join(map(str, sizes))
            size = (prod(sizes) * port.dtype.bits + 7) // 8
            lines.append(
                f" * {argument}: {side} {comment_text(port.name)}, {port.dtype.name}[{shape}], "
                f"{size} bytes, {done}"
            )
    lines += [
        " *",
        f" * It takes {memory} bytes of static memory and {weights[0]} bytes of weights, which are",
        f" * {weights[1]}.  One call at a time; no heap, no threads.",
        " * Returns 0" + ("." if not messages else ", or without results:"),
        *(f" *   {n}: {comment_text(text)}" for n, text in enumerate(messages, 1)),
        " */",
        f"#ifndef TCC_MODEL_{upper}_H",
        f"#define TCC_MODEL_{upper}_H",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    if weights[1] != IN_FILE:
        lines += [f"extern const unsigned char *{name}_weights;", ""]
    lines += [
        f"{declaration(name, program, ports)};",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


IN_FILE = "in the C file"
