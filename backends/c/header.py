"""The header of the C file: the declaration of its function and a description of the arguments."""

from collections.abc import Mapping, Sequence
from math import prod

from tcc.backends.artifact.header import comment_text
from tcc.backends.c.storage import Argument
from tcc.backends.c.types import memory_type
from tcc.ir.program import Input, Place, Register


def declaration(name: str, arguments: Mapping[Place, Argument]) -> str:
    """Returns the declaration of the function that runs the model, without the semicolon."""
    parameters = [
        f"{'const ' if isinstance(place, Input) else ''}{memory_type(a.port.dtype)} *{a.name}"
        for place, a in arguments.items()
    ]
    return f"int {name}_run({', '.join(parameters) or 'void'})"


def header_text(
    name: str,
    arguments: Mapping[Place, Argument],
    registers: Mapping[Register, int],
    messages: Sequence[str],
    memory: int,
    weights: int,
    pointer: str,
    draws: bool,
) -> str:
    """Returns the text of the header.

    `arguments` maps each input and output to its parameter. `registers` has the values of the
    registers that hold the sizes of ports. `messages[n]` says why the function returned n + 1.
    `memory` is the size of the static arrays in bytes, and `weights` that of the weights. `pointer`
    is the variable with the address of the weights, or "" if they are in the C file. `draws`: the
    model draws random numbers, so it has a seed.
    """
    ports = "\n".join(
        _port_line(place, argument, registers) for place, argument in arguments.items()
    )
    returned = ", or without results:" if messages else "."
    numbered = "".join(f" *   {n}: {comment_text(m)}\n" for n, m in enumerate(messages, 1))
    variables, place, state = "", "in the C file", "nothing is kept after a call"
    if draws:
        variables = f"extern uint64_t {name}_seed;\n\n"
        state = (
            f"each call draws with {name}_seed\n"
            " * and adds one to it: set it for a call to draw what another one drew"
        )
    if pointer:
        variables += f"extern const unsigned char *{pointer};\n\n"
        place = f"read from {pointer}: set it to the bytes of the file of weights, aligned"
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


def _port_line(place: Place, argument: Argument, registers: Mapping[Register, int]) -> str:
    side, access = ("input", "read") if isinstance(place, Input) else ("output", "written")
    port, sizes = argument.port, [registers[dim] for dim in argument.port.dims]
    size = (prod(sizes) * port.dtype.bits + 7) // 8
    shape = f"{port.dtype.name}[{', '.join(map(str, sizes))}]"
    return f" * {argument.name}: {side} {comment_text(port.name)}, {shape}, {size} bytes, {access}"
