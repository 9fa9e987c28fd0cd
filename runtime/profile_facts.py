"""Facts of an artifact's steps: names, work, predicted times, memory and the machine's roofs.

All of it comes from the manifest (backends/artifact/profile_facts.py describes its entry
`profile`), which is checked: the file may be untrusted.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcc.runtime.kernel_facts import KernelFact, KernelFacts, kernel_facts, number, typed
from tcc.runtime.module import Module

# The most bytes of the unpacked locations and live bytes of a program.
MOST_UNPACKED = 64 << 20
_CACHES = ("L1", "L2", "L3")
_SYMBOL = re.compile(r"[A-Za-z_][\w.]*\Z")


@dataclass(frozen=True, slots=True)
class Roof:
    """A level of memory: the bytes that all cores read from it in a second.

    A kernel whose launch moves at most `capacity` bytes may find them there. The capacity of L1 and
    L2 is that of all cores together, that of the memory None.
    """

    name: str
    bytes_per_second: float
    capacity: int | None


@dataclass(frozen=True, slots=True)
class StepFact:
    """A step of the program: a launch of a kernel, or a call of a function of the runtime.

    `name` is short and unique to the code: `kernel 3` or the function's name. `location` names the
    node of the model, with the number of nodes that are fused with it; "" if there is none. The
    work of one launch, `flops` and `bytes`, and its predicted `seconds` are None if they are
    unknown. `limit` names what limits the kernel according to its price, or is "".
    """

    name: str
    location: str
    flops: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """The steps of a variant in program order, and the roofs of the machine that it was priced for.

    `flops_per_second` is the peak rate of all `cores` cores, in f32. `roofs` are the levels of
    memory, the smallest first. `live` has the bytes of the arena that are live in each step; it is
    empty if inputs decide sizes. `arena_bound` is the largest of them, or None.
    """

    target: str
    machine: str
    cores: int
    flops_per_second: float
    roofs: tuple[Roof, ...]
    steps: tuple[StepFact, ...]
    live: tuple[int, ...]
    arena_bound: int | None


def profile_facts(module: Module, shapes: Mapping[str, Sequence[int]]) -> ProfileFacts:
    """Returns the facts of the variant that `module` runs, for inputs of these shapes by name.

    Raises the module's error if the manifest has no such facts, or if they are malformed.
    """
    try:
        variant = module.manifest["variants"][module.variant]
        return _facts(variant, _sizes(module, shapes))
    except (LookupError, TypeError, ValueError, OverflowError, zlib.error) as failure:
        raise module._error(
            "the artifact's manifest does not describe its steps",
            where=str(module._path),
            why=f"{type(failure).__name__}: {failure}"[:200],
            hint="compile the model again",
        ) from failure


def _facts(variant: Mapping[str, Any], sizes: Mapping[str, int]) -> ProfileFacts:
    kernels = kernel_facts(variant)
    locations, live = unpacked_entry(variant["profile"], len(kernels.steps))
    machine = variant["machine"]
    cores = typed(machine.get("cores", 1), int)
    if cores < 1:
        raise ValueError("a number is out of range")
    return ProfileFacts(
        typed(variant["target"], str),
        typed(machine.get("name", ""), str),
        cores,
        kernels.flops_per_second,
        _roofs(machine, cores, kernels.bytes_per_second),
        tuple(_step(kernels, number, location, sizes) for number, location in enumerate(locations)),
        live,
        max(live) if live else None,
    )


def unpacked_entry(entry: Any, steps: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns (locations, live) from the manifest's entry `profile`, for a program of `steps`
    steps.

    `locations` has the node of the model of each step, `live` the bytes of the arena that are live
    in it. Raises LookupError, TypeError, ValueError or zlib.error for a malformed entry.
    """
    stream = zlib.decompressobj()
    packed = "".join(typed(line, str) for line in typed(typed(entry, dict)["packed"], list))
    text = stream.decompress(b64decode(packed, validate=True), MOST_UNPACKED)
    if not stream.eof:
        raise ValueError("the packed entry is cut off, or too large")
    texts, numbers, live = (typed(part, list) for part in json.loads(text))
    locations = _joined(texts, numbers)
    if len(locations) != steps or len(live) not in (0, steps):
        raise ValueError("the packed entry is of another program")
    if not all(0 <= typed(size, int) < 1 << 63 for size in live):
        raise ValueError("a number is out of range")
    return locations, tuple(live)


def _joined(texts: Sequence[Any], differences: Sequence[Any]) -> tuple[str, ...]:
    """Returns the locations: texts with numbers between, which are stored as differences."""
    locations, place = [], 0
    before: dict[int, int] = {}
    for parts in texts:
        location = ""
        for index, part in enumerate(typed(parts, list)):
            if index:
                before[index] = before.get(index, 0) + typed(differences[place], int)
                location += str(before[index])
                place += 1
            location += typed(part, str)
        locations.append(location)
    if place != len(differences):
        raise ValueError("the packed entry has numbers of no location")
    return tuple(locations)


def _roofs(machine: Mapping[str, Any], cores: int, memory: float) -> tuple[Roof, ...]:
    roofs = []
    for name, row in zip(_CACHES, typed(machine.get("caches", []), list), strict=False):
        size, rate = typed(row, list)
        shared = name == _CACHES[-1]
        if typed(size, int) > 0 and number(rate) > 0:
            roofs.append(Roof(name, number(rate), size if shared else size * cores))
    return (*roofs, Roof("memory", memory, None))


def _step(kernels: KernelFacts, number: int, location: str, sizes: Mapping[str, int]) -> StepFact:
    step = kernels.steps[number]
    if isinstance(step, str):
        return StepFact(step, location)
    kernel = kernels.kernels[step]
    name, place = f"kernel {step}", location or kernel.source
    at_sizes = kernel.at([sizes.get(size) for size in kernel.sizes])
    if at_sizes is None:
        return StepFact(name, place, limit=kernel.limit or "")
    seconds = at_sizes.seconds if _is_priced(kernel) else None
    limit = at_sizes.limit or ""
    return StepFact(name, place, at_sizes.flops, at_sizes.bytes, seconds, limit)


def _is_priced(kernel: KernelFact) -> bool:
    return not kernel.formulas or bool(kernel.times)


def _sizes(module: Module, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns the symbolic sizes that the texts of the ports name, at these shapes of inputs."""
    sizes: dict[str, int] = {}
    for port in module.inputs:
        texts = port.text.strip("[]").split(",")
        for text, size in zip(texts, shapes.get(port.name, ()), strict=False):
            if _SYMBOL.match(text):
                sizes.setdefault(text, size)
    return sizes
