"""Writes the C side of the table of instructions, for gen_docs.

The text is that of `runtime/src/instructions.h`.
"""

from collections.abc import Iterable
from itertools import groupby
from textwrap import fill

from tcc.ir.program import CollectiveKind, IntOp, Reduction, Relation
from tcc.ir.program.table import INSTRUCTIONS, PLACES, Field, FieldCount, Kind, Row

TYPES = {
    Kind.DTYPE: "tcc_dtype ",
    Kind.INTEGER: "tcc_dtype ",
    Kind.STRING: "const char *",
    Kind.FUNCTION: "const char *",
    Kind.BODY: "tcc_body ",
}
TEXT = """\
/* Host programs as compiler/ir/program/table.py has them, which says what the kinds mean.
 * Written by scripts/gen_docs. */
#ifndef TCC_INSTRUCTIONS_H
#define TCC_INSTRUCTIONS_H

#include <stddef.h>

{enums}

/* The fields of instructions in the order of their words. */
typedef union tcc_fields {{
{structs}
}} tcc_fields;

typedef struct tcc_field {{
    uint8_t kind, form, at; /* `at` bytes behind the beginning of tcc_fields */
}} tcc_field;

/* Initializers: for each code its fields, with one of no kind behind them; for each operation of a
 * let the kinds of its operands. */
#define TCC_FIELD(kind, form, member) \\
    {{TCC_KIND_##kind, TCC_HAS_##form, offsetof(tcc_fields, member)}}
#define TCC_FIELDS {{ \\
{fields}
}}
#define TCC_OPERANDS {{ \\
{operands}
}}

#endif
"""


def instructions_header() -> str:
    """Returns the text of the header."""
    merged = [(name, list(rows)) for name, rows in groupby(INSTRUCTIONS, lambda row: row.name)]
    layouts = {
        name: [kind_and_field(rows, n) for n in range(len(rows[0].fields))] for name, rows in merged
    }
    lets = merged[0][1]
    max_fields = max(map(len, layouts.values()))
    enums = (
        enum("PLACE", (row.name for row in PLACES)),
        enum("CODE", layouts),
        enum("INT", (op.name for op in IntOp)),
        enum("REL", (relation.name for relation in Relation)),
        enum("COLLECTIVE", (kind.name for kind in CollectiveKind)),
        enum("REDUCTION", (reduction.name for reduction in Reduction)),
        enum("KIND", ("none", *(kind.name for kind in Kind), "operand")),
        enum("HAS", (form.name for form in FieldCount)),
        f"enum {{ TCC_MOST_FIELDS = {max_fields} }};",
    )
    return TEXT.format(
        enums="\n".join(enums),
        structs="\n".join(struct(name, layout) for name, layout in layouts.items()),
        fields=" \\\n".join(initializer(name, layout) for name, layout in layouts.items()) + " \\",
        operands=" \\\n".join(map(operands, lets)) + " \\",
    )


def enum(name: str, members: Iterable[str]) -> str:
    listed = ", ".join(f"TCC_{name}_{member.upper()}" for member in (*members, "count"))
    return fill(f"enum {{ {listed} }};", 98, subsequent_indent="       ")


def kind_and_field(rows: list[Row], number: int) -> tuple[str, Field]:
    """Returns (kind in C, field) of field number `number` (from 0) of an instruction class.

    `rows` are the rows of the class, one for each of its operations. The kind is OPERAND if the
    rows differ in it.
    """
    kinds = {row.fields[number].kind.name for row in rows}
    return kinds.pop() if len(kinds) == 1 else "OPERAND", rows[0].fields[number]


def struct(name: str, layout: list[tuple[str, Field]]) -> str:
    members = " ".join(f"{c_type(field)}{field.name};" for _, field in layout)
    return f"    struct {{ {members} }} {name};"


def c_type(field: Field) -> str:
    return (
        "tcc_operands " if field.form is not FieldCount.ONE else TYPES.get(field.kind, "int64_t ")
    )


def initializer(name: str, layout: list[tuple[str, Field]]) -> str:
    parts = (
        f"TCC_FIELD({kind}, {field.form.name}, {name}.{field.name})," for kind, field in layout
    )
    return " \\\n".join(
        ("    { /* " + name + " */", *(f"        {part}" for part in parts), "    },")
    )


def operands(row: Row) -> str:
    kinds = [f"TCC_KIND_{field.kind.name}" for field in row.fields[-2:]]
    return f"    {{{', '.join(kinds)}}},"
