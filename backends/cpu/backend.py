"""Compiles a graph for the cores of one CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from tcc.backends.artifact.planner import arena_planner
from tcc.backends.base import Backend
from tcc.backends.cpu.compile import CodeCache, compile_kernels, start_processes
from tcc.backends.cpu.instructions import byte_dot
from tcc.backends.generated import Generated
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.ir.expr import extent, known_extent
from tcc.ir.graph import Graph
from tcc.ir.index import free_vars, substitute
from tcc.ir.types import DTYPES, F32, I8, U8
from tcc.options import Options
from tcc.passes.derive.derive import Derivations
from tcc.passes.derive.merge import MergePrices
from tcc.passes.derive.prices import Prices
from tcc.passes.memory.plan_arena import live_bytes
from tcc.passes.moe.price import GroupedGemmPrices
from tcc.passes.pipeline import GraphSettings, lower
from tcc.passes.place import LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.program.price import cheapest
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.explain import predictions
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import Bound
from tcc.schedule.alternatives import SILENT, Ledger, number
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.cpu.machine_file import machine_digest, read_machine
from tcc.schedule.cpu.narrow_storage import most_uses
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.shipped_machines import machine_for
from tcc.schedule.cpu.work import group_bytes, group_flops, work_facts
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import typical
from tcc.schedule.open_sizes import table_sizes
from tcc.target import Target
from tcc.zipped import zip_equal

# Candidate heights, in rows, for the tiles of grouped GEMMs.
_ROW_TILES = (16, 32)
# The usual number of graph nodes in a kernel. It predicts the number of kernels, and so how many
# worker processes start early.
_NODES = 4
# A tile that takes more than `_LONG` seconds checks for cancellation. Every machine does `_WORK`
# operations, or moves as many bytes, in less time. So a tile with less work is never long.
_LONG, _WORK = 20e-3, 10_000_000


class CpuBackend(Backend):
    """Generates code for the cores of a CPU.

    `constants` is the size of the model's constants in bytes.
    """

    kinds = ("cpu",)
    refusals = MappingProxyType(
        {
            "allow_host": "all code is the host's already",
            "gpu_kernels": "there are kernels for GPUs only with a GPU target",
        }
    )

    def __init__(
        self, target: Target, options: Options, constants: int, ledger: Ledger = SILENT
    ) -> None:
        """Raises UserError for a machine file that is damaged or of another kind of processor, and
        for the precision int8 on a processor that cannot multiply bytes."""
        self.target, self.options, self.constants = target, options, constants
        if options.precision == "int8" and not target.profile.multiplies_bytes:
            raise UserError(
                "the processor has no instruction that multiplies bytes",
                where=f"--precision int8 --cpu {target.profile.cpu}",
                hint="choose another --precision, or a processor with VNNI or dotprod",
            )
        self.machine = resolve_machine(options, target)
        ledger = ledger.within(target.text, self.machine.cores)
        masked = target.profile.masks_lanes
        self.planner = schedule_planner(
            self.machine,
            constants if options.level >= 2 else None,
            pairs=target.profile.multiplies_pairs,
            skips=options.numerics != "strict",
            masked=masked,
            ledger=ledger,
        )
        self.settings = self._graph_settings(masked, ledger)
        self._code: CodeCache | None = None
        self._plans: dict[Graph, LoweringContext] = {}  # by the graph that they placed

    def _graph_settings(self, masked: bool, ledger: Ledger) -> GraphSettings:
        options, profile = self.options, self.target.profile
        strict = options.numerics == "strict"
        # scatter_rows runs as a C function of the runtime on the host, so only this backend
        # creates such nodes.
        pairs = options.precision == "bf16" and profile.multiplies_pairs
        settings = GraphSettings(
            scatter_rows=True,
            check_indices=True,
            split_level_zeros=pairs or options.activations is not None,
        )
        if profile.multiplies_bytes:
            # `signed` is True if an instruction multiplies signed bytes by signed bytes, and
            # `mixed` if an instruction multiplies unsigned bytes by signed bytes.
            signed, mixed = (bool(byte_dot(profile, u, False, 4)) for u in (False, True))
            settings = replace(
                settings,
                int8_weight_matmuls=True,
                split_zero_points=True,
                factor_type=(None if signed else U8) if mixed else I8,
                requantize=not strict,
            )
        if self.planner.pricer is None:
            return settings
        tile_of = GroupedGemmPrices(self.planner, _ROW_TILES).tile_of
        parts = partial(cheapest, planner=self.planner, apart=True)
        settings = replace(settings, tile_of=tile_of, checks=True, parts=parts)
        if not options.derive:
            return settings
        # Derivations are priced as if the constants had the largest size that options allow.
        grown = round(self.constants * options.weight_growth)
        grown_planner = schedule_planner(self.machine, grown, masked=masked, ledger=ledger)
        if grown_planner.prices_as(self.planner):
            # The two planners give the same prices, and `self.planner` has prices in its cache.
            grown_planner = self.planner
        elif grown_planner.pricer is not None:
            grown_planner.pricer.counted = self.planner.pricer.counted
        prices = Prices(grown_planner, 2.0 if pairs else 1.0)
        derivations = Derivations(prices, options.weight_growth, strict=strict)
        zeros = partial(cheapest, planner=self.planner, margin=MARGINS["derivation"])
        merges = MergePrices(self.planner)
        return replace(
            settings, zeros=None if strict else zeros, merges=merges, derivations=derivations
        )

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        why = {"--precision": "tf32 is a precision of GPUs"} if options.precision == "tf32" else {}
        return {**why, **super().refused(options)}

    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        bits = self.options.weight_bits
        # The precision tf32 names no element type. It means f32 here, as CPUs have no tf32.
        floats = DTYPES.get(self.options.precision, F32)
        uses = most_uses(self.machine, floats, self.constants)
        pairs = self.target.profile.multiplies_pairs
        # The processes start while the first kernels are being planned.
        start_processes(len(graph.nodes) // _NODES, self.options.jobs, self.options.budgets)
        precision = Precision(floats, bits, pairs, uses)
        if self.options.activations is not None:
            precision = replace(precision, level_bytes=self.settings.factor_type or I8)
        plan = LoweringContext(self.planner, arena_planner(), precision)
        lowered = lower(graph, plan, trace)
        self._plans[lowered.placed.graph] = plan
        return lowered

    def share_code(self, other: Backend | None = None) -> None:
        self._code = other._code if isinstance(other, CpuBackend) else {}

    def lowered_again(self, lowered: Lowered, trace: Trace) -> Lowered:
        return lower(lowered.placed, self._plans[lowered.placed.graph], trace)

    def generate(
        self, lowered: Lowered, names: Sequence[str], trace: Trace | None = None
    ) -> Generated:
        code = compile_kernels(
            lowered.kernels, names, self.target, self.options.jobs, self.options.budgets,
            [self._long(bound) for bound in lowered.table.bounds], self._code, trace,
        )  # fmt: skip
        facts = self._facts(lowered, names)
        return Generated(code.objects, code.scratch, code.listings, facts)

    def _long(self, bound: Bound) -> float:
        """Returns the seconds of a tile if it must check for cancellation, else 0.

        The kernel is priced at its typical sizes and at the sizes of the manifest's table of times;
        the longest tile counts. Short tiles need no check, because a run can be cancelled between
        tiles. If symbolic sizes change the work of a tile but not the number of tiles, a tile may
        take any time, so it always checks.
        """
        schedule, longest = bound.schedule, 0.0
        assert isinstance(schedule, Schedule)
        grows = bound.kernel.sizes and all(known_extent(v) for v in bound.kernel.axes)
        for group in (bound.group, *bound.tabulated):
            loops = [v for v in group.common if v.name in schedule.parallel]
            tiles = prod(-(-typical(extent(v)) // schedule.tile_size(v.name)) for v in loops)
            if max(group_flops(group), group_bytes(group)) < _WORK * tiles and not grows:
                continue  # the tile has so little work that it is short on every machine
            pricer = self.planner.pricer or Pricer(self.machine, self.constants)
            price = pricer.price(group, schedule, single_core=True)
            longest = max(longest, number(price.seconds) / max(1, tiles))
        return longest if grows or longest > _LONG else 0.0

    def _facts(self, lowered: Lowered, names: Sequence[str]) -> dict[str, Any]:
        machine, pairs = self.machine, self.target.profile.multiplies_pairs
        pricer = self.planner.holding(lowered.weights.size).pricer
        pricer = pricer or Pricer(machine, lowered.weights.size, pairs=pairs)
        kernels, live = lowered.table, _live(lowered)
        entries = [
            {
                "symbol": name,
                "source": loc,
                **work_facts(bound.group, bound.kernel.sizes),
                **predictions(pricer, bound, live),
            }
            for name, loc, bound in zip_equal(names, kernels.locs, kernels.bounds)
        ]
        return {
            "machine": {
                "name": machine.name,
                "sha256": machine_digest(machine),
                "cores": machine.cores,
                "flops_per_second": machine.peak,
                "bytes_per_second": machine.memory.read_all,
                "caches": machine.caches,
            },
            "cpu": self.target.profile.cpu,
            "kernels": entries,
        }


def resolve_machine(options: Options, target: Target) -> Machine:
    """Returns the machine for which schedules are chosen.

    This is the machine file that the options name, else the machine that tcc ships for the target's
    CPU. Raises UserError if the file is damaged or describes a machine with other vector registers.
    """
    if options.machine is None:
        return machine_for(target.profile)
    machine = read_machine(options.machine)
    profile = target.profile
    if (machine.lanes, machine.registers) != (profile.lanes(32), profile.vector_registers):
        raise UserError(
            "the machine file is for a processor with other vectors",
            where=f"--machine {options.machine}",
            why=f"it has {machine.registers} vectors of {machine.lanes} f32, {profile.cpu} has "
            f"{profile.vector_registers} of {profile.lanes(32)}",
            hint="calibrate on such a machine, or choose its processor with --cpu",
        )
    return machine


def schedule_planner(
    machine: Machine,
    constants: int | None,
    *,
    pairs: bool = False,
    skips: bool = True,
    masked: bool = False,
    ledger: Ledger = SILENT,
) -> CoreChooser:
    """Returns a planner that prices schedules for a model with `constants` bytes of constants.

    With `constants` None, the planner has no prices. `pairs`: the CPU multiplies pairs of bf16.
    `skips`: streaming loops may skip blocks that attention's masks hide. `masked`: loads and
    stores may leave out lanes of a vector.
    """
    return CoreChooser(
        CoreModel(
            machine.lanes,
            machine.registers,
            machine.l2.size,
            machine.cores,
            machine.fmas,
            machine.loads,
            machine.fma_latency,
            machine.l1,
            machine.memory.hinted,
            limits=machine.limits,
            skips=skips,
            masked=masked,
        ),
        None if constants is None else Pricer(machine, constants, pairs=pairs),
        ledger,
    )


def _live(lowered: Lowered) -> list[int]:
    """Returns the largest number of arena bytes that are live at once, for each set of sizes.

    The first set has the typical sizes. The other sets are those of the manifest's table of times.
    """
    inputs = enumerate(lowered.placed.graph.inputs)
    dims = {(n, axis): dim for n, v in inputs for axis, dim in enumerate(v.shape)}
    sets = ({}, *table_sizes(free_vars(*dims.values())))
    sized = ({key: typical(substitute(dim, sizes)) for key, dim in dims.items()} for sizes in sets)
    return [live_bytes(lowered.program, dims_at) for dims_at in sized]
