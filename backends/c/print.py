"""Prints a lowered model as one C11 file and its header.

constants, static memory      the data of the kernels
support                       functions of `support.c` and of the runtime that are called
kernel_0, kernel_1, ...       one function a kernel
NAME_run                      the program
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tcc.backends.artifact.header import comment_text
from tcc.backends.c.header import declaration, header_text
from tcc.backends.c.kernel import KernelPrinter
from tcc.backends.c.names import CNames
from tcc.backends.c.program import ProgramPrinter, known_registers
from tcc.backends.c.storage import Argument, element_types, place_buffers
from tcc.backends.c.types import literal, value_type
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.program import Input, Output, Place, Program, Weight
from tcc.ir.tile import TileKernel
from tcc.ir.types import I64, DType
from tcc.runtime.c_definitions import needed
from tcc.zipped import zip_equal

# Larger weights go into a separate file; a compiler takes seconds for an array of this size.
MOST_IN_FILE = 16 << 20
_LINE = 96
_SUPPORT = Path(__file__).with_name("support.c")


@frozen
class CFiles:
    """The files of a model.

    `source` and `header` are the texts of the C file and its header. `weights` is the content of
    the file of weights, b"" if there is none. `memory` is the size of static memory in bytes.
    """

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
) -> CFiles:
    """Returns the files of a model called `name`; large weights get a file of their own.

    `comments` say which nodes each kernel computes. `section` holds the bytes of the weights.
    Raises UserError for buffers whose size is not known before the run.
    """
    for port in program.outputs:
        if port.state >= 0:
            raise UserError("C files keep no state", where=port.name, hint="leave out --state")
    suffixes = ("run", "weights", "seed")
    names = CNames(frozenset({*(f"{name}_{part}" for part in suffixes), "temporaries", "run_seed"}))
    function_names = [names.fresh(f"kernel_{number}") for number in range(len(kernels))]
    functions = [
        KernelPrinter(kernel).function(function_name, _comment(f"{function_name}: {nodes}"))
        for kernel, function_name, nodes in zip_equal(kernels, function_names, comments)
    ]
    registers = known_registers(program)
    arguments: dict[Place, Argument] = {
        kind(number): Argument(names.fresh(port.name), port)
        for kind, ports in ((Input, program.inputs), (Output, program.outputs))
        for number, port in enumerate(ports)
    }
    types = element_types(program, functions, arguments)
    weights_name = f"{name}_weights" if len(section) > MOST_IN_FILE else ""
    storage = place_buffers(program, types, registers, arguments, names, weights_name)
    printer = ProgramPrinter(program, storage, functions, registers, f"{name}_seed")
    constants = [f"const unsigned char *{weights_name};"] if weights_name else []
    constants += [f"uint64_t {name}_seed;"] * printer.draws
    constants += (_array(array_name, section, *key) for key, array_name in storage.weights.items())
    lines = printer.lines()
    declarations = storage.declarations
    if printer.room:
        declarations.append(f"static _Alignas(16) unsigned char temporaries[{printer.room}];")
    head = declaration(name, arguments)
    text = "\n".join(lines)
    unused = (f"    (void){a.name};" for a in arguments.values() if a.name not in text)
    run_function = "\n".join([head, "{", *unused, *lines, "}"])
    body = "\n\n".join([*(f.text for f in functions), run_function])
    memory = storage.bytes + printer.room + sum(f.scratch for f in functions)
    sections = [
        f"/* {name}: a model compiled by tcc; {name}.h says how to call it.\n *\n"
        " * Floats are those of IEEE 754: compile without -ffast-math, and without contraction of\n"
        " * a * b + c (gcc has it off with -std=c11, else -ffp-contract=off). */",
        f'#include "{name}.h"\n\n#include <math.h>\n#include <stdbool.h>\n#include <stddef.h>\n'
        "#include <stdint.h>\n#include <string.h>",
        _CONTRACTION,
        *constants,
        "\n".join(declarations),
        *needed(body, _SUPPORT),
        body,
    ]
    source = "\n\n".join(part for part in sections if part) + "\n"
    size = len(section)
    header = header_text(
        name, arguments, registers, printer.messages, memory, size, weights_name, printer.draws
    )
    return CFiles(source, header, section if weights_name else b"", memory)


_CONTRACTION = "#if !defined(__GNUC__) || defined(__clang__)\n#pragma STDC FP_CONTRACT OFF\n#endif"


def _comment(text: str) -> list[str]:
    """Returns the lines of a C comment, wrapped."""
    *lines, last = _wrapped("/*", " *", comment_text(text).split())
    return [*lines, last + " */"]


def _wrapped(first_margin: str, margin: str, words: Sequence[str], mark: str = "") -> list[str]:
    """Returns the words wrapped to lines, each followed by `mark`.

    The first line begins with `first_margin`, every other line with `margin`.
    """
    lines = [first_margin]
    for word in words:
        if len(lines[-1]) + len(word) > _LINE:
            lines.append(margin)
        lines[-1] += f" {word}{mark}"
    return lines


def _array(name: str, section: bytes, place: Weight, dtype: DType) -> str:
    values = np.frombuffer(section, dtype.carrier, place.size // dtype.bytes, place.offset)
    texts = [_value(v, dtype) for v in values] or ["0"]
    *lines, last = _wrapped("   ", "   ", texts, ",")
    head = f"static const {value_type(dtype)} {name}[{len(texts)}] = {{"
    return "\n".join([head, *lines, last.rstrip(","), "};"])


def _value(value: Any, dtype: DType) -> str:
    text = literal(value, dtype)
    plain = dtype is I64 and not text.startswith("INT64")
    return f"INT64_C({text})" if plain else text
