"""Marks outputs that are inputs updated in place: `--state PAST=PRESENT`.

    graph(%past : f32[1,8,256,64]) { ... return %y, %present }        ... alias %present = %past ...

Requires nothing.  Establishes a must-alias for each pair: the run writes the new value to the
caller's own array of the input.  State has a fixed capacity, so both must have one type; how much
of it is in use is the model's to know (a length or position it takes as input).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tcc.errors import UserError
from tcc.ir.graph import Graph, Value


def bind_states(graph: Graph, pairs: Iterable[tuple[str, str]]) -> Graph:
    """`graph` with the aliases of `pairs` (input name, output name).

    Raises `UserError` for an unknown name, one that is used twice, or types that differ.
    """
    aliases = list(graph.aliases)
    for past, present in pairs:
        source = _named(graph.inputs, past, f"{past}={present}", "input")
        result = _named(graph.outputs, present, f"{past}={present}", "output")
        _check_free(result, source, aliases)
        _check_types(result, source)
        aliases.append((result, source))
    if len(aliases) == len(graph.aliases):
        return graph
    return replace(graph, aliases=tuple(aliases))


def _named(values: Sequence[Value], name: str, pair: str, kind: str) -> Value:
    for value in values:
        if value.name == name:
            return value
    raise UserError(
        f"the model has no {kind} {name!r}",
        where=f"--state {pair}",
        hint=f"its {kind}s are {', '.join(v.name for v in values)}",
    )


def _check_free(result: Value, source: Value, aliases: Sequence[tuple[Value, Value]]) -> None:
    for other, taken in aliases:
        if other is result or taken is source:
            raise UserError(
                "a state is given twice",
                where=f"--state {source.name}={result.name}",
                why=f"{other.name} updates {taken.name} already",
            )


def _check_types(result: Value, source: Value) -> None:
    if result.type == source.type:
        return
    where = f"--state {source.name}={result.name}"
    if result.type.dtype is not source.type.dtype or result.type.rank != source.type.rank:
        raise UserError(
            "a state changes its type",
            where=where,
            why=f"the input is {source.type!r}, the output {result.type!r}",
        )
    raise UserError(
        "a state must keep its size",
        where=where,
        why=f"the input is {source.type!r}, the output {result.type!r}: memory that is updated in "
        "place cannot grow",
        hint="export the model with a cache of fixed capacity that it updates at a position "
        "(ScatterND, ScatterElements or Where), or fix equal sizes with --input",
    )
