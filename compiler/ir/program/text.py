"""The text of host programs, with a line for each instruction; tests parse it back.

    program registers 3 scratch 0 arena r2
      input "x" : f32[r0] "[n]"
      output "y" : f32[r0] "[n]"
      kernel "relu"
      buffer b0 = input(0) "x"
      buffer b1 = output(0) "y"
      group "rows" (0, 1) (2, 3)
    {
      r0 = dim(0, 0)
      r1 = const 4
      r2 = mul(r0, r1)
      allocate b1 r2
      launch k0 r0 (b0, b1) (r0)
    }

Registers are `r0, r1, ...` (`none` where a plan has not set one yet), buffers `b0, b1, ...`.
`tcc.ir.program.table` has the texts of instructions and places.
"""

import json
from collections.abc import Sequence
from typing import Any

from tcc.ir.program import Instr, Place, Port, Program, Register, TensorRef
from tcc.ir.program.table import ENUMS, Field, FieldCount, Kind, row_of


def program_text(program: Program) -> str:
    """Returns the text of a program; ends with a newline."""
    sizes = f"registers {program.registers} scratch {program.scratch}"
    lines = [f"program {sizes} arena {_value(Kind.USED, program.arena)}"]
    lines += (f"  input {_port(p)}" for p in program.inputs)
    lines += (f"  output {_port(p)}" for p in program.outputs)
    lines += (f"  kernel {json.dumps(name)}" for name in program.kernels)
    for number, buffer in enumerate(program.buffers):
        lines.append(f"  buffer b{number} = {_node(buffer.place)} {json.dumps(buffer.label)}")
    for group in program.groups:
        lists = (f"({', '.join(map(str, ranks))})" for ranks in group.members)
        lines.append(" ".join((f"  group {json.dumps(group.name)}", *lists)))
    return "\n".join([*lines, _body(program.body, "")]) + "\n"


def _registers(registers: Sequence[Register]) -> str:
    return ", ".join(_value(Kind.USED, register) for register in registers)


def _port(port: Port) -> str:
    text = f"{json.dumps(port.name)} : {port.dtype.name}[{_registers(port.dims)}]"
    state = f" state {port.state}" if port.state >= 0 else ""
    return f"{text} {json.dumps(port.text)}{state}"


def _body(body: Sequence[Instr], indent: str) -> str:
    inner = indent + "  "
    return "\n".join(["{", *(inner + _node(instr, inner) for instr in body), indent + "}"])


def _node(node: Instr | Place, indent: str = "") -> str:
    return "".join(
        part if isinstance(part, str) else _field(part, getattr(node, part.name), indent)
        for part in row_of(node).text
    )


def _field(field: Field, value: Any, indent: str) -> str:
    kind = field.kind
    if kind is Kind.BODY:
        return _body(value, indent)
    if field.form is FieldCount.TENSORS:
        return f"({', '.join(_tensor(kind, ref) for ref in value)})"
    if field.form is FieldCount.MANY:
        return f"({', '.join(_value(kind, item) for item in value)})"
    if value == kind.absent:
        return ""
    text = _value(kind, value)
    return f" {field.lead} {text}".rstrip() if field.lead else text


def _tensor(kind: Kind, ref: TensorRef) -> str:
    return f"{_value(kind, ref.buffer)} : {ref.dtype.name}[{_registers(ref.dims)}]"


def _value(kind: Kind, value: Any) -> str:
    match kind:
        case Kind.STRING | Kind.FUNCTION:
            return json.dumps(value)
        case Kind.DTYPE | Kind.INTEGER:
            return str(value.name)
        case Kind.FLAG:
            return ""
        case _ if kind in ENUMS:
            return str(value.name.lower())
        case _:
            return "none" if kind.letter == "r" and value < 0 else f"{kind.letter}{value}"
