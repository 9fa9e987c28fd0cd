"""The byte form of host programs as compiler/ir/program/table.py has it, which names the kinds.

Written by scripts/gen_docs.  A field is (name, kind, form), in the order of the encoding. The form
is "one", "many" or "tensors".
"""

from __future__ import annotations

# fmt: off
PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input", ("port", )),
    ("output", ("port", )),
    ("weight", ("offset", "size", )),
    ("arena", ("offset", "size", )),
    ("state", ("size", )),
    ("dynamic", ()),
    ("alias", ()),
    ("symmetric", ("offset", "size", )),
)
OPERATIONS: tuple[str, ...] = (
    "const",
    "dim",
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "min",
    "max",
    "rank",
    "seed",
    "capacity",
)
RELATIONS: tuple[str, ...] = (
    "eq",
    "le",
    "lt",
    "divides",
)
COLLECTIVES: tuple[str, ...] = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
)
INSTRUCTIONS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("let", (
        ("target", "defined", "one"),
        ("op", "operation", "one"),
        ("a", "operand", "one"),
        ("b", "operand", "one"),
    )),
    ("read", (
        ("target", "defined", "one"),
        ("buffer", "read", "one"),
        ("dtype", "integer", "one"),
        ("element", "element", "one"),
    )),
    ("check", (
        ("relation", "relation", "one"),
        ("a", "used", "one"),
        ("b", "used", "one"),
        ("message", "string", "one"),
    )),
    ("allocate", (
        ("buffer", "allocated", "one"),
        ("size", "used", "one"),
        ("keep", "flag", "one"),
    )),
    ("view", (
        ("buffer", "aimed", "one"),
        ("base", "read", "one"),
        ("offset", "used", "one"),
    )),
    ("launch", (
        ("kernel", "kernel", "one"),
        ("grid", "used", "one"),
        ("least", "least", "one"),
        ("buffers", "touched", "many"),
        ("ints", "used", "many"),
    )),
    ("call", (
        ("op", "function", "one"),
        ("inputs", "read", "tensors"),
        ("outputs", "written", "tensors"),
        ("ints", "number", "many"),
        ("results", "defined", "many"),
    )),
    ("copy", (
        ("target", "written", "one"),
        ("source", "read", "one"),
        ("size", "used", "one"),
    )),
    ("branch", (
        ("condition", "condition", "one"),
        ("when", "when", "one"),
        ("then", "body", "one"),
        ("otherwise", "body", "one"),
    )),
    ("loop", (
        ("trips", "used", "one"),
        ("condition", "condition", "one"),
        ("counter", "defined", "one"),
        ("body", "body", "one"),
    )),
    ("plan", (
        ("end", "defined", "one"),
        ("offsets", "defined", "many"),
        ("sizes", "used", "many"),
        ("lives", "number", "many"),
    )),
    ("collective", (
        ("kind", "collective", "one"),
        ("reduction", "reduction", "one"),
        ("send", "read", "one"),
        ("receive", "written", "one"),
        ("dtype", "dtype", "one"),
        ("ranks", "number", "one"),
        ("root", "number", "one"),
        ("ticket", "ticket", "one"),
        ("group", "group", "one"),
        ("counts", "used", "many"),
    )),
    ("wait", (
        ("ticket", "ticket", "one"),
        ("send", "read", "one"),
        ("receive", "written", "one"),
    )),
)
