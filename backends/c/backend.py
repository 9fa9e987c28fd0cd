"""Compiles a graph to one portable C file with scalar kernels, a static arena and no heap."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.backends.artifact.assets import NO_ASSETS
from tcc.backends.artifact.planner import arena_planner
from tcc.backends.artifact.publish import folder_beside
from tcc.backends.artifact.variant import Variant, describe_ports, describe_variant
from tcc.backends.artifact.weight_section import Range
from tcc.backends.base import Backend
from tcc.backends.c.print import print_model
from tcc.backends.c.storage import refused_size
from tcc.backends.generated import Generated
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.ir.graph import Graph, walk_nodes
from tcc.ir.index import Index
from tcc.ir.types import TensorType
from tcc.options import Options
from tcc.passes.fuse.structure import build_group
from tcc.passes.pipeline import GraphSettings, lower
from tcc.passes.place import LoweringContext
from tcc.passes.program.lower_node import check_without_collectives
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.lower import lower as lower_group
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import Bound, KernelKey, Planned
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.work import work_facts
from tcc.target import Target
from tcc.zipped import zip_equal

WEIGHTS_SUFFIX = ".weights"


class ScalarChooser(CoreChooser):
    """Plans scalar kernels: blocks have one element, and constants keep the model's layout."""

    gaps = False

    def bind(self, key: KernelKey) -> Planned:
        group = build_group(*key)
        schedule = choose(group, self.core)
        nests = (
            replace(nest, blocks=(), vector=None, ahead=0, packed=False) for nest in schedule.nests
        )
        scalar = replace(schedule, nests=tuple(nests))
        return key[1], Bound(lower_group(group, scalar), scalar, group)

    def least_units(self, bound: Bound) -> Index | None:
        return None


class CBackend(Backend):
    """Writes a C11 file and its header."""

    kinds = ("c",)
    suffix = ".c"
    needs = "a C11 compiler"
    settings = GraphSettings(check_indices=True)
    refusals = MappingProxyType(
        {
            "activations": "C files compute as the model says",
            "precision": "C files compute as the model says",
            "allow_host": "all code is the host's already",
            "gpu_kernels": "there are kernels for GPUs only with a GPU target",
            "emit": "a C file is no library",
            "machine": "C files are for every machine",
            "tuned": "C files have no tuned kernels",
            "preprocess": "C files have no manifest",
            "tokenizer": "C files hold no assets",
            "state": "C files keep no state from run to run",
            "ranks": "C files have no communicator",
        }
    )

    def __init__(
        self, target: Target, options: Options, constants: int, ledger: Ledger = SILENT
    ) -> None:
        self.target, self.options = target, options
        profile = target.profile
        core = CoreModel(
            profile.lanes(32),
            profile.vector_registers,
            profile.l2,
            cores=1,
            l1=profile.l1,
            skips=options.numerics != "strict",
        )
        self.planner = ScalarChooser(core)

    def check(self, graph: Graph) -> None:
        """Raises UserError for what a C file cannot hold.

        These are inputs of symbolic size, values of data-dependent size, and values that are no
        arrays of numbers.
        """
        check_without_collectives(graph, self.target.kind)
        for value in graph.inputs:
            if isinstance(value.type, TensorType) and value.type.static_shape is None:
                shape = "x".join(dim.key for dim in value.shape)
                raise UserError(
                    "C files need sizes that are known",
                    where=f"input {value.name}: {shape}",
                    hint=f"give its sizes, as in --input {value.name}=1x3x224x224",
                )
        values = [(value, f"input {value.name}") for value in graph.inputs]
        values += [
            (v, f"{n.op.name} at {n.loc or v.name}") for n in walk_nodes(graph) for v in n.outputs
        ]
        for value, place in values:
            if not isinstance(value.type, TensorType) or value.dtype.is_handle:
                raise UserError(
                    "C files have no strings and no lists", where=place, why="they need a heap"
                )
            if value.type.static_shape is None:
                raise refused_size(place)

    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        precision = Precision(bits=self.options.weight_bits)
        return lower(graph, LoweringContext(self.planner, arena_planner(), precision), trace)

    def generate(
        self, lowered: Lowered, names: Sequence[str], trace: Trace | None = None
    ) -> Generated:
        """Returns the C file and its header with a placeholder for the model's name.

        `write` replaces the placeholder.
        """
        section = b"".join(part().tobytes() for part in lowered.weights.parts())
        files = print_model(_UNNAMED, lowered.program, lowered.kernels, lowered.table.locs, section)
        texts = tuple(text.encode() for text in (files.source, files.header))
        rows = zip_equal(names, lowered.table.locs, lowered.table.bounds)
        entries = [
            {"symbol": name, "source": loc, **work_facts(bound.group, bound.kernel.sizes)}
            for name, loc, bound in rows
        ]
        facts = {"memory": files.memory, "kernels": entries}
        return Generated((*texts, files.weights), 0, ("",) * len(names), facts)

    @classmethod
    def check_tools(cls, triple: str) -> None:
        return None

    @classmethod
    def write(
        cls,
        variants: Sequence[Variant],
        manifest: dict[str, Any],
        name: str,
        output: Path,
        triple: str,
        emit: str = "shared",
        assets: Mapping[str, bytes] = NO_ASSETS,
    ) -> dict[str, Any]:
        (variant,) = variants
        source, header, weights = variant.objects
        files = {
            output.with_suffix(WEIGHTS_SUFFIX): weights,
            output.with_suffix(".h"): _named(header, name, output),
            output: _named(source, name, output),
        }
        with folder_beside(output, "the C file") as folder:
            present = [place for place, data in files.items() if data]
            for place in present:
                (folder / place.name).write_bytes(files[place])
            for place in present:
                os.replace(folder / place.name, place)
        weight_range = Range(0, sum(np.asarray(part).nbytes for part in variant.weights))
        ports = describe_ports(variant.program)
        entry = describe_variant(variant, [weight_range], Range(0, 0), ports)
        return {**manifest, **ports, "name": name, "variants": [entry]}


# Stands for the model's name until `write` knows it.
_UNNAMED = "tcc_unnamed_model"


def _named(text: bytes, name: str, output: Path) -> bytes:
    header = output.with_suffix(".h").name
    renamed = text.replace(f"{_UNNAMED}.h".encode(), header.encode())
    renamed = renamed.replace(_UNNAMED.upper().encode(), name.upper().encode())
    return renamed.replace(_UNNAMED.encode(), name.encode())
