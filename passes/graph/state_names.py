"""Finds the states that a pattern names, for `--state 'past_*=present_*'`.

past_*=present_*      ->  past_0=present_0, past_1=present_1, ..., past_10=present_10
past.*.*=present.*.*  ->  past.0.key=present.0.key, past.0.value=present.0.value, ...
"""

import re
from collections.abc import Iterator, Sequence

from tcc.errors import UserError
from tcc.ir.graph import Graph
from tcc.zipped import zip_equal


def named_states(graph: Graph, pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the names in `pairs` (input, output), with patterns replaced by what they match.

    A pattern is a pair of names with `*`.  Each `*` stands for a text, the same in both names; the
    first has the shortest text with which an input matches.  The pairs of a pattern are in natural
    order: 2 before 10.  A pair whose first name is an input's name is no pattern.  Raises UserError
    for a pattern that matches no input, or an input without an output of the same texts.
    """
    inputs = [value.name for value in graph.inputs]
    outputs = [value.name for value in graph.outputs]
    names: list[tuple[str, str]] = []
    for past, present in pairs:
        is_pattern = past not in inputs and "*" in past + present
        names += _matches(past, present, inputs, outputs) if is_pattern else [(past, present)]
    return tuple(names)


def _matches(
    past: str, present: str, inputs: Sequence[str], outputs: Sequence[str]
) -> Iterator[tuple[str, str]]:
    where = f"--state {past}={present}"
    first, *parts_after = present.split("*")
    if past.count("*") != len(parts_after):
        raise UserError(
            "a pattern of states has more * on one side",
            where=where,
            hint="write as many on both sides, as in --state 'past_*=present_*'",
        )
    pattern = re.compile("(.*?)".join(map(re.escape, past.split("*"))), re.DOTALL)
    matches = {name: match for name in inputs if (match := pattern.fullmatch(name))}
    if not matches:
        raise UserError(
            f"no input matches the pattern {past!r}",
            where=where,
            hint=f"the model's inputs are {', '.join(inputs)}",
        )
    for name in sorted(matches, key=_natural):
        texts = zip_equal(matches[name].groups(), parts_after)
        result = first + "".join(a + b for a, b in texts)
        if result not in outputs:
            raise UserError(
                f"a pattern of states matches the input {name!r}, which has no output {result!r}",
                where=where,
                why=f"the model's outputs are {', '.join(outputs)}",
                hint="write a pattern that matches only the states, or a pair for each state",
            )
        yield name, result


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that orders names by their numbers and the texts between the numbers."""
    parts = enumerate(re.split(r"(\d+)", name))  # every second part is a number
    return [(len(part.lstrip("0")) if n % 2 else 0, part) for n, part in parts]
