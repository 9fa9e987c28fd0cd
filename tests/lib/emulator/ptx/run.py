"""Runs launches of PTX, some blocks at a time."""

from __future__ import annotations

import ctypes
import random
from functools import cache

from tests.lib.emulator.device import Launch

from . import arithmetic, barriers, conversions, copies, exchange, loads, products, warpgroups
from .machine import Machine
from .parse import kernel
from .program import Program
from .warpgroups import Products

FORMS = (arithmetic, barriers, conversions, copies, exchange, loads, products, warpgroups)
_TOGETHER = 1 << 14  # Threads that run together.


@cache
def program(text: str, name: str) -> Program:
    """Parses the entry `name` of a module; raises Unknown for the first unknown form."""
    return Program(kernel(text, name))


def run(found: Program, launch: Launch, seed: int = 0) -> None:
    """Runs all blocks in random order; raises Fault and Unknown.

    Blocks of kernels without mbarriers run together, which is faster.
    """
    rng = random.Random(seed)
    numbers = list(range(launch.blocks))
    rng.shuffle(numbers)
    is_alone = any(text.startswith(("mbarrier", "wgmma")) for text in found.opcodes)
    step = 1 if is_alone else max(_TOGETHER // launch.threads, 1)
    room = ctypes.create_string_buffer(len(launch.parameters) + 128)
    address = -(-ctypes.addressof(room) // 128) * 128
    ctypes.memmove(address, launch.parameters, len(launch.parameters))
    for begin in range(0, launch.blocks, step):
        blocks = numbers[begin : begin + step]
        machine = Machine(found, launch, blocks, address, rng)
        machine.state["products"] = Products()
        machine.run()
