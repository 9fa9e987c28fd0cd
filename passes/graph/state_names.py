"""Finds the states that a pattern names, for `--state 'past_*=present_*'`.

past_*=present_*      ->  past_0=present_0, past_1=present_1, ..., past_10=present_10
past.*.*=present.*.*  ->  past.0.key=present.0.key, past.0.value=present.0.value, ...
"""

import re
from collections.abc import Sequence

from tcc.errors import UserError
from tcc.ir.graph import Graph


def named_states(graph: Graph, pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the names in `pairs` (input, output), with patterns replaced by what they match.

    A pattern is a pair of names with `*`.  Each `*` stands for any text, and stands for the same
    text in both names.  The pairs of a pattern are in natural order: 2 before 10.  A name of the
    model that contains `*` is no pattern.  Raises UserError for a pattern that matches no input,
    or whose inputs do not have one output each.
    """
    inputs, outputs = ([v.name for v in values] for values in (graph.inputs, graph.outputs))
    result: list[tuple[str, str]] = []
    for past, present in pairs:
        if past in inputs or "*" not in past + present:
            result.append((past, present))
        else:
            result += _matches(past, present, inputs, outputs)
    return tuple(result)


def _matches(
    past: str, present: str, inputs: Sequence[str], outputs: Sequence[str]
) -> list[tuple[str, str]]:
    where = f"--state {past}={present}"
    counts = past.count("*"), present.count("*")
    if counts[0] != counts[1]:
        raise UserError(
            "a pattern of states has more * on one side",
            where=where,
            why=f"the input's name has {counts[0]}, the output's name has {counts[1]}",
            hint="write as many on both sides, as in --state 'past_*=present_*'",
        )
    texts = "(.*)".join(map(re.escape, past.split("*")))
    first, *others = map(re.escape, present.split("*"))
    same = first + "".join(rf"(?:\{n}){text}" for n, text in enumerate(others, 1))
    alone, pair = re.compile(texts, re.DOTALL), re.compile(f"{texts}\0{same}", re.DOTALL)
    matching = sorted(filter(alone.fullmatch, inputs), key=_natural)
    if not matching:
        raise UserError(
            f"no input matches the pattern {past!r}",
            where=where,
            hint=f"the model's inputs are {', '.join(inputs)}",
        )
    return [
        (name, _only([o for o in outputs if pair.fullmatch(f"{name}\0{o}")], name, where, outputs))
        for name in matching
    ]


def _only(matches: Sequence[str], name: str, where: str, outputs: Sequence[str]) -> str:
    if len(matches) == 1:
        return matches[0]
    raise UserError(
        f"a pattern of states matches {'several outputs' if matches else 'no output'} for {name!r}",
        where=where,
        why=f"{'they are' if matches else 'the model has'} {', '.join(matches or outputs)}",
        hint="write a pattern that matches only the states, or a pair for each state",
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that orders names by their numbers and the texts between the numbers."""
    parts = enumerate(re.split(r"(\d+)", name))  # every second part is a number
    return [(len(part.lstrip("0")) if n % 2 else 0, part) for n, part in parts]
