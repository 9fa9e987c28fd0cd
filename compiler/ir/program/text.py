"""Text of host programs, a line an instruction; `tcc.ir.program.parse` reads it back to the same.

    program registers 3 scratch 0 arena r2
      input "x" : f32[r0] "[n]"
      output "y" : f32[r0] "[n]"
      kernel "relu"
      buffer b0 = input(0) "x"
      buffer b1 = output(0) "y"
    {
      r0 = dim(0, 0)
      r1 = const 4
      r2 = mul(r0, r1)
      allocate b1 r2
      launch k0 r0 (b0, b1) (r0)
    }

Registers are `r0, r1, ...` (`none` where a plan has not set one yet), buffers `b0, b1, ...`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import assert_never

from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    CallOp,
    Check,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    Place,
    Port,
    Program,
    ReadInt,
    Register,
    State,
    TensorRef,
    View,
    Weight,
)


def program_text(program: Program) -> str:
    """The text of a program; ends with a newline."""
    sizes = f"registers {program.registers} scratch {program.scratch}"
    lines = [f"program {sizes} arena {_register(program.arena)}"]
    lines += (f"  input {_port(p)}" for p in program.inputs)
    lines += (f"  output {_port(p)}" for p in program.outputs)
    lines += (f"  kernel {json.dumps(name)}" for name in program.kernels)
    for number, buffer in enumerate(program.buffers):
        lines.append(f"  buffer b{number} = {_place(buffer.place)} {json.dumps(buffer.label)}")
    return "\n".join([*lines, "{", *_body(program.body, "  "), "}"]) + "\n"


def _register(register: Register) -> str:
    return f"r{register}" if register >= 0 else "none"


def _registers(registers: Sequence[Register]) -> str:
    return ", ".join(map(_register, registers))


def _port(port: Port) -> str:
    text = f"{json.dumps(port.name)} : {port.dtype.name}[{_registers(port.dims)}]"
    state = f" state {port.state}" if port.state >= 0 else ""
    return f"{text} {json.dumps(port.text)}{state}"


def _place(place: Place) -> str:
    match place:
        case Input(port):
            return f"input({port})"
        case Output(port):
            return f"output({port})"
        case Weight(offset, size):
            return f"weight({offset}, {size})"
        case Arena(offset, size):
            return f"arena({_register(offset)}, {_register(size)})"
        case State(size):
            return f"state({size})"
        case Dynamic():
            return "dynamic()"
        case Alias():
            return "alias()"
        case _:
            assert_never(place)


def _body(body: Sequence[Instr], indent: str) -> list[str]:
    lines: list[str] = []
    for instr in body:
        match instr:
            case Branch():
                asked = _register(instr.when) if instr.when >= 0 else f"b{instr.condition}"
                lines.append(f"{indent}branch {asked} {{")
                lines += _body(instr.then, indent + "  ")
                lines.append(f"{indent}}} else {{")
                lines += _body(instr.otherwise, indent + "  ")
                lines.append(indent + "}")
            case Loop():
                bound = f"{_register(instr.counter)} < {_register(instr.trips)}"
                asks = f" while b{instr.condition}" if instr.condition >= 0 else ""
                lines.append(f"{indent}loop {bound}{asks} {{")
                lines += _body(instr.body, indent + "  ")
                lines.append(indent + "}")
            case _:
                lines.append(indent + _instr(instr))
    return lines


def _instr(
    instr: Let | ReadInt | Check | Allocate | View | Launch | CallOp | Copy,
) -> str:
    match instr:
        case Let():
            return f"{_register(instr.target)} = {_let(instr)}"
        case ReadInt():
            source = f"b{instr.buffer}[{instr.element}] : {instr.dtype.name}"
            return f"{_register(instr.target)} = read {source}"
        case Check():
            relation = instr.relation.name.lower()
            operands = f"{_register(instr.a)} {relation} {_register(instr.b)}"
            return f"check {operands} {json.dumps(instr.message)}"
        case Allocate():
            keep = " keep" if instr.keep else ""
            return f"allocate b{instr.buffer} {_register(instr.size)}{keep}"
        case View():
            return f"view b{instr.buffer} = b{instr.base} + {_register(instr.offset)}"
        case Launch():
            buffers = ", ".join(f"b{b}" for b in instr.buffers)
            least = f" least {instr.least}" if instr.least > 1 else ""
            grid = f"k{instr.kernel} {_register(instr.grid)}"
            return f"launch {grid} ({buffers}) ({_registers(instr.ints)}){least}"
        case CallOp():
            return _call(instr)
        case Copy():
            return f"copy b{instr.target} = b{instr.source} {_register(instr.size)}"
        case _:
            assert_never(instr)


def _let(instr: Let) -> str:
    name = instr.op.name.lower()
    if instr.op is IntOp.CONST:
        return f"const {instr.a}"
    if instr.op is IntOp.DIM:
        return f"dim({instr.a}, {instr.b})"
    return f"{name}({_register(instr.a)}, {_register(instr.b)})"


def _call(instr: CallOp) -> str:
    ints = ", ".join(map(str, instr.ints))
    operands = f"({_tensors(instr.inputs)}) ({_tensors(instr.outputs)})"
    return f"call {json.dumps(instr.op)} {operands} ({ints}) ({_registers(instr.results)})"


def _tensors(refs: Sequence[TensorRef]) -> str:
    return ", ".join(f"b{r.buffer} : {r.dtype.name}[{_registers(r.dims)}]" for r in refs)
