"""Writes the table of instructions for the Python part of the runtime, for gen_docs.

The text is that of `runtime/instructions.py`.
"""

from collections.abc import Iterable
from enum import Enum
from itertools import groupby

from instructions_header import kind_and_field
from tcc.ir.program import CollectiveKind, IntOp, Relation
from tcc.ir.program.table import INSTRUCTIONS, PLACES, Field, FieldCount

TEXT = '''\
"""The byte form of host programs as compiler/ir/program/table.py has it, which names the kinds.

Written by scripts/gen_docs.  A field is (name, kind, form), in the order of the encoding. The form
is "one", "many" or "tensors".
"""

from __future__ import annotations

# fmt: off
PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
{places}
)
OPERATIONS: tuple[str, ...] = (
{operations}
)
RELATIONS: tuple[str, ...] = (
{relations}
)
COLLECTIVES: tuple[str, ...] = (
{collectives}
)
INSTRUCTIONS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
{instructions}
)
'''
FORMS = {FieldCount.ONE: "one", FieldCount.MANY: "many", FieldCount.TENSORS: "tensors"}


def instructions_module() -> str:
    """Returns the text of the module."""
    merged = [(name, list(rows)) for name, rows in groupby(INSTRUCTIONS, lambda row: row.name)]
    layouts = [
        (name, [kind_and_field(rows, n) for n in range(len(rows[0].fields))])
        for name, rows in merged
    ]
    places = (f'    ("{row.name}", ({"".join(map(quoted, row.fields))})),' for row in PLACES)
    return TEXT.format(
        places="\n".join(places),
        operations=members(IntOp),
        relations=members(Relation),
        collectives=members(CollectiveKind),
        instructions="\n".join(instruction(name, layout) for name, layout in layouts),
    )


def instruction(name: str, layout: Iterable[tuple[str, Field]]) -> str:
    rows = "\n".join(
        f'        ("{field.name}", "{kind.lower()}", "{FORMS[field.form]}"),'
        for kind, field in layout
    )
    return f'    ("{name}", (\n{rows}\n    )),'


def members(words: type[Enum]) -> str:
    return "\n".join(f'    "{word.name.lower()}",' for word in words)


def quoted(field: Field) -> str:
    return f'"{field.name}", '
