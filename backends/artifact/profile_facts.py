"""The manifest's entry for profiles: the node of each step, and the live memory.

    "profile": {"steps": 3, "arena_bound": 8192, "packed": ["eNrLSM3J..."]}

`packed` is the base64 text, in lines, of a zlib stream of JSON, `[texts, numbers, live]`.  `texts`
and `numbers` are the place in the model of each step: "/layer.7/MatMul" after "/layer.6/MatMul" is
the texts ["/layer.", "/MatMul"] and the number 1, the difference to the number before.  So the
names of many equal layers take few bytes.  `live` has the bytes of the arena that are live in each
step; it is empty if inputs decide sizes.  tcc.runtime.profile_facts reads it.
"""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Sequence
from itertools import accumulate
from textwrap import wrap
from typing import Any

from tcc.ir.program import Arena, Instr, Loop, Program, Symmetric, constant_registers
from tcc.ir.program.operands import STEPS, bodies_of
from tcc.passes.memory.plan_arena import arena_lives

# A number without leading zeros, which its value gives back.
_NUMBER = re.compile("(0|[1-9][0-9]{0,8})")


def profile_facts(program: Program) -> dict[str, Any]:
    """Returns the manifest's entry `profile` of a variant whose arena is planned.

    `arena_bound` is the largest number of bytes that are live at one time, below which no plan of
    these lives can be; None if inputs decide sizes.
    """
    instructions = _numbered(program.body)
    live = _live_bytes(program, len(instructions))
    places = [position for position, instr in enumerate(instructions) if isinstance(instr, STEPS)]
    locations = [getattr(instructions[position], "loc", "") for position in places]
    content = *_split(locations), [live[n] for n in places] if live else []
    text = json.dumps(content, separators=(",", ":"))
    return {
        "steps": len(places),
        "arena_bound": max(live) if live else None,
        "packed": wrap(b64encode(zlib.compress(text.encode(), 9)).decode(), 64),
    }


def _split(locations: Sequence[str]) -> tuple[list[list[str]], list[int]]:
    """Returns the texts around the numbers of each location, and the differences of numbers.

    The difference of a location's n-th number is to the n-th number of an earlier location.
    """
    texts, differences = [], []
    before: dict[int, int] = {}
    for location in locations:
        parts = _NUMBER.split(location)
        texts.append(parts[::2])
        for place, number in enumerate(map(int, parts[1::2])):
            differences.append(number - before.get(place, 0))
            before[place] = number
    return texts, differences


def _numbered(body: Sequence[Instr]) -> list[Instr | None]:
    """Returns the instruction at each position of `arena_lives`; None for the end of a loop."""
    instructions: list[Instr | None] = []
    for instr in body:
        instructions.append(instr)
        for inner in bodies_of(instr):
            instructions += _numbered(inner)
        instructions += [None] * isinstance(instr, Loop)
    return instructions


def _live_bytes(program: Program, positions: int) -> list[int]:
    """Returns the live bytes of the arena at each position; empty if inputs decide a size."""
    constants = constant_registers(program)
    lives, _ = arena_lives(program.body)
    changes = [0] * (positions + 1)
    for number, life in lives.items():
        place = program.buffers[number].place
        if isinstance(place, Arena | Symmetric):
            size = constants.get(place.size)
            if size is None:
                return []
            changes[life.first] += size
            changes[life.last + 1] -= size
    return list(accumulate(changes[:-1]))
