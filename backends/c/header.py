"""The header of a C file: one function, and what it takes."""

from collections.abc import Mapping, Sequence
from math import prod

from tcc.backends.artifact.header import comment_text
from tcc.backends.c.storage import Argument
from tcc.backends.c.types import memory_type
from tcc.ir.program import Input, Place, Register


def declaration(name: str, arguments: Mapping[Place, Argument]) -> str:
    """The function that runs the model, without a semicolon."""
    taken = [
        f"{'const ' if isinstance(place, Input) else ''}{memory_type(a.port.dtype)} *{a.name}"
        for place, a in arguments.items()
    ]
    return f"int {name}_run({', '.join(taken) or 'void'})"


def header_text(
    name: str,
    arguments: Mapping[Place, Argument],
    known: Mapping[Register, int],
    messages: Sequence[str],
    memory: int,
    weights: int,
    beside: str,
    draws: bool,
) -> str:
    """The header; `memory` are the bytes of static arrays, `weights` those of weights, to which the
    pointer `beside` leads, if they are not in the C file; `draws` is true where it has a seed."""
    ports = "\n".join(_port_line(place, each, known) for place, each in arguments.items())
    returned = ", or without results:" if messages else "."
    numbered = "".join(f" *   {n}: {comment_text(m)}\n" for n, m in enumerate(messages, 1))
    variables, place, state = "", "in the C file", "nothing is kept after a call"
    if draws:
        variables = f"extern uint64_t {name}_seed;\n\n"
        state = (
            f"each call draws with {name}_seed\n"
            " * and adds one to it: set it for a call to draw what another one drew"
        )
    if beside:
        variables += f"extern const unsigned char *{beside};\n\n"
        place = f"read from {beside}: set it to the bytes of the file of weights, aligned"
    return f"""\
/* {name}: a model compiled by tcc.
 *
 * {name}_run computes the outputs from the inputs.  All arrays are the caller's,
 * contiguous and row-major; they do not overlap, and {state}.
 *
{ports}
 *
 * It takes {memory} bytes of static memory and {weights} bytes of weights, which are
 * {place}.  One call at a time; no heap, no threads.
 * Returns 0{returned}
{numbered} */
#ifndef TCC_MODEL_{name.upper()}_H
#define TCC_MODEL_{name.upper()}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{variables}{declaration(name, arguments)};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _port_line(place: Place, argument: Argument, known: Mapping[Register, int]) -> str:
    side, done = ("input", "read") if isinstance(place, Input) else ("output", "written")
    port, sizes = argument.port, [known[dim] for dim in argument.port.dims]
    size = (prod(sizes) * port.dtype.bits + 7) // 8
    shape = f"{port.dtype.name}[{', '.join(map(str, sizes))}]"
    return f" * {argument.name}: {side} {comment_text(port.name)}, {shape}, {size} bytes, {done}"
