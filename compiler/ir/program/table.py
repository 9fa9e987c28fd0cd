"""The table of the host program's instructions and places.

A row is the text of one instruction, in which `{field:kind}` stands for a field of its class.  The
text, its parser in the tests, the encoding, the verifier, the operands that passes read and write,
and the C decoder (`runtime/src/instructions.h`, which `scripts/gen_docs` writes) derive from it.
The encoding numbers the instructions in the order of the rows.

`kind*` is a list of numbers in parentheses, `kind[]` a list of `TensorRef`s whose buffers are of
that kind.  The text omits `{word field:kind}`, including the word, where the field has the kind's
absent value.

An instruction is encoded as words in this order: its code, the fields with a single value, the
lengths of all lists, the items of all lists, and the bodies, each after the number of its
instructions.  Fields of one sort keep the order of the class.  A program without groups has no
words for fields of kind GROUP.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from types import MappingProxyType
from typing import Any

from tcc.frozen import frozen
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    CallOp,
    Check,
    Collective,
    CollectiveKind,
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
    PlanArena,
    ReadInt,
    Reduction,
    Relation,
    State,
    Symmetric,
    View,
    Wait,
    Weight,
)


class Kind(Enum):
    """The kind of a field's values.

    `letter` precedes the numbers of this kind in the text, as in `r0`. If a field of this kind may
    be unused, `absent` is the value that says so; else `absent` is None.
    """

    def __init__(self, text: str, letter: str = "", absent: int | None = None) -> None:
        self.text, self.letter, self.absent = text, letter, absent

    USED = "used", "r"
    DEFINED = "defined", "r"
    READ = "read", "b"
    WRITTEN = "written", "b"  # a buffer that the instruction writes, neither input nor weight
    TOUCHED = "touched", "b"  # a buffer that the kernel reads or writes
    ALLOCATED = "allocated", "b"
    AIMED = "aimed", "b"
    CONDITION = "condition", "b", -1  # a buffer whose first byte is read
    WHEN = "when", "r", -1  # a register, read if `condition` is absent
    KERNEL = "kernel", "k"
    TICKET = "ticket", "t"
    GROUP = "group", "g", -1
    PORT = "port"  # an input port
    AXIS = "axis"  # an axis of the preceding port
    NUMBER = "number"
    ELEMENT = "element"
    LEAST = "least", "r", -1  # a register, read unless absent
    FLAG = "flag", "", 0
    OPERATION = "operation"
    RELATION = "relation"
    COLLECTIVE = "collective"
    REDUCTION = "reduction"
    DTYPE = "dtype"
    INTEGER = "integer"  # the integer type of elements that are read as sizes
    STRING = "string"
    FUNCTION = "function"  # the name of a function of runtime/src/ops
    BODY = "body"


# The kinds whose values are members of an enum: words in the text, numbers in the encoding.
ENUMS: Mapping[Kind, type[Enum]] = MappingProxyType(
    {
        Kind.OPERATION: IntOp,
        Kind.RELATION: Relation,
        Kind.COLLECTIVE: CollectiveKind,
        Kind.REDUCTION: Reduction,
    }
)


class FieldCount(Enum):
    """The number of values in a field."""

    ONE = ""
    MANY = "*"
    TENSORS = "[]"


@frozen
class Field:
    """A field of an instruction or place; `lead` is the word before it in the text."""

    name: str
    kind: Kind
    form: FieldCount = FieldCount.ONE
    lead: str = ""


@frozen
class Row:
    """An instruction or place.

    `name` is its name in C. `text` alternates between literals and fields. `fields` are in the
    order of the encoding. `operation` is the operation of a `Let`, else None.
    """

    name: str
    node: type
    text: tuple[str | Field, ...]
    fields: tuple[Field, ...]
    operation: IntOp | None = None


_SPEC = re.compile(r"\{(?:(\w+) )?(\w+):(\w+)(\*|\[\])?\}")
_PARTS = re.compile(r"(\{.*?\})")


def _row(name: str, node: type, pattern: str, operation: IntOp | None = None) -> Row:
    text = tuple(_part(part) for part in _PARTS.split(pattern) if part)
    fields_by_name = {part.name: part for part in text if isinstance(part, Field)}
    hidden = {"op": Kind.OPERATION} if operation else {}
    listed = (f.name for f in fields(node) if f.compare)
    all_fields = [fields_by_name.get(n) or Field(n, hidden.get(n, Kind.NUMBER)) for n in listed]
    # Bodies are encoded last, after the fields of several items.
    all_fields.sort(key=lambda f: 2 if f.kind is Kind.BODY else f.form is not FieldCount.ONE)
    return Row(name, node, text, tuple(all_fields), operation)


def _part(part: str) -> str | Field:
    match = _SPEC.fullmatch(part)
    if not match:
        return part
    lead, name, kind, form = match.groups(default="")
    return Field(name, Kind[kind.upper()], FieldCount(form), lead)


_LET = "{target:defined} = "
_LETS = {
    IntOp.CONST: "const {a:number}",
    IntOp.DIM: "dim({a:port}, {b:axis})",
    IntOp.RANK: "rank()",
    IntOp.SEED: "seed()",
    IntOp.CAPACITY: "capacity({a:port}, {b:axis})",
}
INSTRUCTIONS = (
    *(
        _row("let", Let, _LET + _LETS.get(op, f"{op.name.lower()}({{a:used}}, {{b:used}})"), op)
        for op in IntOp
    ),
    _row("read", ReadInt, _LET + "read {buffer:read}[{element:element}] : {dtype:integer}"),
    _row("check", Check, "check {a:used} {relation:relation} {b:used} {message:string}"),
    _row("allocate", Allocate, "allocate {buffer:allocated} {size:used}{keep keep:flag}"),
    _row("view", View, "view {buffer:aimed} = {base:read} + {offset:used}"),
    _row(
        "launch",
        Launch,
        "launch {kernel:kernel} {grid:used} {buffers:touched*} {ints:used*}{least least:least}",
    ),
    _row(
        "call",
        CallOp,
        "call {op:function} {inputs:read[]} {outputs:written[]} {ints:number*} {results:defined*}",
    ),
    _row("copy", Copy, "copy {target:written} = {source:read} {size:used}"),
    _row(
        "branch",
        Branch,
        "branch {condition:condition}{when:when} {then:body} else {otherwise:body}",
    ),
    _row(
        "loop",
        Loop,
        "loop {counter:defined} < {trips:used}{while condition:condition} {body:body}",
    ),
    _row(
        "plan",
        PlanArena,
        "plan {end:defined} {offsets:defined*} {sizes:used*} {lives:number*}",
    ),
    _row(
        "collective",
        Collective,
        "collective {kind:collective} {reduction:reduction} {receive:written} = {send:read} "
        "{counts:used*} : {dtype:dtype} ranks {ranks:number} root {root:number} {ticket:ticket}"
        "{in group:group}",
    ),
    _row("wait", Wait, "wait {ticket:ticket} {receive:written} = {send:read}"),
)
PLACES = (
    _row("input", Input, "input({port:port})"),
    _row("output", Output, "output({port:number})"),
    _row("weight", Weight, "weight({offset:number}, {size:number})"),
    _row("arena", Arena, "arena({offset:used}, {size:used})"),
    _row("state", State, "state({size:number})"),
    _row("dynamic", Dynamic, "dynamic()"),
    _row("alias", Alias, "alias()"),
    _row("symmetric", Symmetric, "symmetric({offset:used}, {size:used})"),
)

CODES = {node: code for code, node in enumerate(dict.fromkeys(r.node for r in INSTRUCTIONS))}
PLACE_CODES = {row.node: code for code, row in enumerate(PLACES)}
_ROWS: dict[Any, Row] = {row.operation or row.node: row for row in (*INSTRUCTIONS, *PLACES)}


def row_of(node: Instr | Place) -> Row:
    """Returns the row of an instruction or a place."""
    return _ROWS[node.op if isinstance(node, Let) else type(node)]
