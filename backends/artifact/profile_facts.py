"""The manifest's entry for profiles: the node of each step, and the live memory.

    "profile": {"steps": 3, "arena_bound": 8192, "packed": "eNrLSM3J..."}

`packed` is the base64 text of a zlib stream of JSON, `[locations, live]`.  `locations` has the
place in the model of each step, or "".  `live` has the bytes of the arena that are live in each
step; it is empty if inputs decide sizes.  tcc.runtime.profile_facts reads it.
"""

import json
import zlib
from base64 import b64encode
from itertools import accumulate
from typing import Any

from tcc.ir.program import Arena, Program, Symmetric, constant_registers
from tcc.ir.program.operands import STEPS, walk_instructions
from tcc.passes.memory.plan_arena import arena_lives


def profile_facts(program: Program) -> dict[str, Any]:
    """Returns the manifest's entry `profile` of a variant whose arena is planned.

    `arena_bound` is the largest number of bytes that are live at one time, below which no plan of
    these lives can be; None if inputs decide sizes.
    """
    instructions = list(walk_instructions(program.body))
    live = _live_bytes(program, len(instructions))
    places = [position for position, instr in enumerate(instructions) if isinstance(instr, STEPS)]
    locations = [getattr(instructions[position], "loc", "") for position in places]
    text = json.dumps([locations, [live[n] for n in places] if live else []], separators=(",", ":"))
    return {
        "steps": len(places),
        "arena_bound": max(live) if live else None,
        "packed": b64encode(zlib.compress(text.encode(), 9)).decode(),
    }


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
