"""Graphs of artifacts: kernels and buffers with bytes, flops and times.

    graph = tcc.graph("model.so")              # a networkx.DiGraph
    graph = tcc.graph(module, profile)         # with the measured times of a profile

`tcc.runtime.graph_measures` has the critical path and the peak of memory, and
`tcc.runtime.graph_files` writes pictures and files for viewers.

The file is read, and none of its code runs, so it may be for another machine.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx
from tcc.runtime.elf import ElfError, read_section
from tcc.runtime.graph_builder import KernelGraphBuilder
from tcc.runtime.graph_measures import peak_memory
from tcc.runtime.host_program import HostInstruction, HostProgram, read_program, register_values
from tcc.runtime.kernel_facts import KernelFact, kernel_facts, typed
from tcc.runtime.launch_needs import read_needs
from tcc.runtime.module import Module
from tcc.runtime.profile_facts import unpacked_entry
from tcc.runtime.reports import InputError
from tcc.runtime.sections import MANIFEST_SECTION, NEEDS_SECTION, PROGRAM_SECTION

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile


class _NoGraph(Exception):
    """The reason for a NoGraphError."""


class NoGraphError(InputError):
    """The artifact is older than graphs, was linked by hand, or is no longer at its path."""


_MOST_BYTES = 16 << 20  # of a section, because a hostile file may claim any size


def graph(
    artifact: str | os.PathLike[str] | Module,
    profile: ModuleProfile | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    variant: int | None = None,
) -> networkx.DiGraph:
    """Returns the steps and buffers of an artifact: a file, or a module that was loaded from it.

    Edges go from a value of a buffer to the steps that read it, and from a step to the values that
    it writes. `KernelGraphBuilder` lists the attributes. Inputs and outputs also have `dtype` and
    `shape`. A step of a kernel also has `location` (its node in the model), `flops`, `bytes`,
    `predicted` (seconds of its launches in a run) and `limit`. With a `profile` of the artifact,
    steps have `measured` (seconds in a run) and `launches`.

    `shapes` gives the shapes of inputs by name. Without them, a kernel with symbolic sizes has the
    work and time at typical sizes, and `typical` is True; buffers of unknown size have no `bytes`.
    `variant` is the number of a variant in the manifest; None is 0, the module's or the profile's.

    Raises NoGraphError for an artifact that has no graph. Raises InputError if the file cannot be
    read, is no artifact or is damaged, and if the profile is of another artifact.
    """
    if isinstance(artifact, Module):
        variant = artifact.variant if variant is None else variant
        path = artifact._image.path
    else:
        path = Path(artifact)
    if profile is not None:
        variant = profile.variant if variant is None else variant
        shapes = profile.shapes if shapes is None else shapes
    try:
        if isinstance(artifact, Module) and not artifact._image.is_at_path():
            raise _NoGraph("another file is at its path since it was loaded")
        result = _graph(path, variant or 0, shapes or {})
    except OSError as failure:
        raise InputError(
            "the artifact cannot be read", where=str(path), why=failure.strerror or str(failure)
        ) from failure
    except ElfError as failure:
        raise InputError(
            "the file is not a tcc artifact, or is damaged",
            where=str(path),
            why=str(failure),
            hint="make one with: tcc compile MODEL.onnx",
        ) from failure
    except _NoGraph as failure:
        raise NoGraphError(
            "the artifact does not describe its graph",
            where=str(path),
            why=str(failure),
            hint="compile the model again",
        ) from failure
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError, zlib.error) as error:
        raise InputError(
            "the artifact does not describe its graph",
            where=str(path),
            why=f"{type(error).__name__}: {error}"[:200],
            hint="compile the model again",
        ) from error
    if profile is not None:
        _add_times(result, profile, path)
    return result


def _graph(path: Path, variant: int, shapes: Mapping[str, Sequence[int]]) -> networkx.DiGraph:
    if path.is_fifo():
        raise ElfError("it is a pipe")
    with path.open("rb") as file:
        names = MANIFEST_SECTION, f"{PROGRAM_SECTION}{variant}", f"{NEEDS_SECTION}{variant}"
        text, program_bytes, table = (read_section(file, name, _MOST_BYTES) for name in names)
    if text is None:
        raise ElfError(f"it has no section {MANIFEST_SECTION}")
    manifest = json.loads(text)
    entry = manifest["variants"][variant]
    if program_bytes is None or table is None:
        raise _NoGraph("it was compiled before artifacts had graphs")
    program = read_program(program_bytes[:-1])
    needs = read_needs(table[:-1], len(program.kernels))
    if needs is None and program.kernels:
        raise _NoGraph("it does not say which buffers its kernels write")
    values = register_values(program, shapes)
    builder = KernelGraphBuilder(program, values, needs or ())
    builder.build()
    result = builder.graph
    result.graph["name"] = _plain(str(manifest.get("name", path.stem)))
    result.graph["target"] = typed(entry["target"], str)
    result.graph["threads"] = typed(entry["machine"].get("cores", 1), int)
    _describe(result, builder.launches, entry, values)
    _describe_ports(result, program, {**manifest, **entry})
    if (peak := peak_memory(result)) is not None:
        result.graph["peak_step"], result.graph["peak_bytes"] = peak.step, peak.bytes
    return result


def _describe(
    result: networkx.DiGraph,
    steps: Sequence[HostInstruction],
    entry: Mapping[str, Any],
    values: Mapping[int, int],
) -> None:
    """Adds the facts of the manifest's variant to the nodes of steps.

    `values` has the values of registers. Raises ValueError if the facts are of another program.
    """
    kernels = kernel_facts(entry)
    locations, _ = unpacked_entry(entry["profile"], len(kernels.steps))
    if len(steps) != len(kernels.steps):
        raise ValueError("the manifest does not name all steps")
    for number, (instruction, named) in enumerate(zip(steps, kernels.steps, strict=True)):
        node = result.nodes[f"s{number}"]
        node["location"] = _plain(locations[number])
        if instruction.name != "launch":
            node["name"] = _plain(str(named))
            continue
        if named != instruction.fields["kernel"]:
            raise ValueError("the manifest names another kernel")
        kernel = kernels.kernels[instruction.fields["kernel"]]
        node["name"] = f"kernel {named}"
        node["location"] = _plain(locations[number] or kernel.source)
        node.update(_work(kernel, [values.get(r) for r in instruction.fields["ints"]]))
        node["predicted"] = node.pop("seconds") * node.get("launches", 1)


def _plain(text: str) -> str:
    """Returns a text that UTF-8 can encode: JSON may hold half of a pair of surrogates."""
    return text.encode("utf-8", "replace").decode()


def _describe_ports(
    result: networkx.DiGraph, program: HostProgram, manifest: Mapping[str, Any]
) -> None:
    """Adds `dtype` and `shape` to the values of inputs and outputs; None stands for a symbolic
    size."""
    for _, data in result.nodes(data=True):
        if data.get("place") in ("input", "output"):
            ports = typed(manifest[f"{data['place']}s"], list)
            port = ports[program.buffers[data["buffer"]].numbers["port"]]
            data["dtype"], data["shape"] = typed(port["dtype"], str), typed(port["shape"], list)


def _work(kernel: KernelFact, sizes: Sequence[int | None]) -> dict[str, Any]:
    """Returns the work, predicted seconds and limit of a launch at `sizes`.

    If a size is unknown, they are those at typical sizes.
    """
    at_sizes = kernel.at(sizes)
    fact = kernel if at_sizes is None else at_sizes
    work = {
        "flops": fact.flops, "bytes": fact.bytes, "seconds": fact.seconds,
        "limit": fact.limit or "",
    }  # fmt: skip
    return work if at_sizes is not None else {**work, "typical": True}


def _add_times(result: networkx.DiGraph, profile: ModuleProfile, path: Path) -> None:
    """Adds the times of a profile to the nodes of steps; raises InputError if the steps differ."""
    names = [(d["name"], d["location"]) for _, d in result.nodes(data=True) if "step" in d]
    if names != [(fact.name, fact.location) for fact in profile.facts.steps]:
        raise InputError(
            "the profile is of another artifact",
            where=str(path),
            why="the steps of the program are others than those of the profile",
            hint="profile this artifact",
        )
    for step in profile.steps:
        node = result.nodes[f"s{step.number}"]
        node["measured"], node["launches"] = step.seconds, step.launches
        if step.predicted is not None:
            node["predicted"] = step.predicted
    result.graph["seconds"], result.graph["threads"] = profile.seconds, profile.threads
