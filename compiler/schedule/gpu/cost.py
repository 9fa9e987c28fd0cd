"""Prices block schedules: the seconds of a tile group on a GPU, and what they are due to.

    8192 x 8192 x 8192 halves, blocks 128 x 256 x 64, 8 warps, 3 stages, on 132 processors
      ->  2048 units, one a processor: 16 rounds ; 1.4 ms of matrix units, 0.6 ms of memory

A roofline of each processor (Williams, Waterman, Patterson 2009) with whole rounds of units: a
processor's matrix units and its link to the cache are shared by the units on it, and no round ends
before a unit has waited for its loads (Little's law: what is in flight over what it takes).  How
many units a processor holds follows from registers, shared memory and lanes.  The cache and memory
serve all processors together; a round of units shares what it reads.
"""

from collections.abc import Sequence
from math import inf, prod, sqrt

from tcc.ir.index import Var
from tcc.ir.tile.group import TileGroup
from tcc.record import record
from tcc.schedule.gpu.schedule import FLOAT8_NAME, BlockProfile, BlockSchedule
from tcc.schedule.gpu.work import LEAST_SIDE, SECTOR, Cut, GroupFacts, Matrix, StageRun
from tcc.schedule.nest import trips

# Seconds: one kernel of a captured graph after another, until its units run; a load from memory
# and from the cache; a barrier of four warps; their lanes combined through shared memory.
LAUNCH = 2e-6
_FAR, _NEAR, _BARRIER, _ACROSS = 6e-7, 2.5e-7, 2e-8, 1.5e-7
# Bytes that a processor moves in a cycle: from shared memory, and from the cache, alone and when
# all do (5120 for 108 of an A100, 16384 for 304 of an MI300X, as their makers say).
_SHARED_BYTES, _LINK_BYTES, _CACHE_BYTES = 128, 64, 48
# What copies reach of memory, products of matrix units that do not throttle, and dependent
# multiply-adds of lanes.
_MEMORY_SHARE, _MATRIX_SHARE, _LANE_SHARE = 0.9, 0.8, 0.75
# What instructions of one warp reach where those of several are faster.
_ONE_WARP_SHARE = 0.6
# What lanes that multiply keep of the factors of a whole sum in registers.
_RESIDENT_SHARE = 0.6
# Cycles in which matrix units wait for the next block's instructions.
_ISSUE = 64
# What of the cache keeps data between kernels.
_KEPT = 0.25
# Bytes of an operand's element, where it is no half.
_BYTES = {"f32": 4, "i8": 1, FLOAT8_NAME: 1}
# Units of a processor at most; shared bytes that each takes beside its own; registers of a lane
# that addresses and masks take.
_MOST_UNITS, _OWN_SHARED, _OWN_REGISTERS = 32, 1024, 32


@record
class Usage:
    """What a kernel takes: `registers` and `private` bytes of a lane, `shared` bytes of a unit."""

    registers: int
    private: int
    shared: int


@record
class BlockPrice:
    """Seconds of one launch, and those that each resource alone would take.

    `latency` is what units wait for loads and barriers.  `units` run in all, `resident` at once on
    a processor; `bytes` come from memory or go there.
    """

    seconds: float
    compute: float
    dram: float
    l2: float
    latency: float
    launch: float
    units: int
    resident: int
    bytes: int
    usage: Usage

    @property
    def limit(self) -> str:
        """The resource that takes longest."""
        names = ("compute", "dram", "l2", "latency", "launch")
        found: str = max(names, key=lambda name: float(getattr(self, name)))
        return found


def streamed(profile: BlockProfile, bytes_: float) -> float:
    """Seconds of a kernel that does nothing but move so many bytes, through the cache if it keeps
    them."""
    rate = profile.bandwidth * _MEMORY_SHARE
    if bytes_ <= profile.cache * _KEPT:
        rate = _CACHE_BYTES * profile.clock * profile.processors
    return LAUNCH + 2 * _NEAR + bytes_ / rate


class BlockPricer:
    """Prices schedules of one group on one device."""

    def __init__(self, group: TileGroup, profile: BlockProfile) -> None:
        self.profile = profile
        self.facts = GroupFacts(group)
        self._common = frozenset(group.common)
        self._streams = group.stream is not None
        self._runs: dict[tuple[object, ...], tuple[StageRun, ...]] = {}
        # Bytes of a second.
        self._shared = _SHARED_BYTES * profile.clock
        self._link = _LINK_BYTES * profile.clock
        self._cache = _CACHE_BYTES * profile.clock * profile.processors
        self._lanes = profile.flops / 2 / profile.processors

    def price(self, schedule: BlockSchedule, built: Usage | None = None) -> BlockPrice:
        """The price of the group's kernel; `built` is what a compiler made of it, where known.

        Without that the seconds are infinite where the device would not hold a unit.
        """
        runs = self.runs(schedule)
        grid = self.facts.grid(schedule)
        usage = built or self._usage(runs, schedule)
        units = prod(each.steps for each in grid)
        resident = self.resident(usage, schedule)
        if built is not None:
            resident = max(1, resident)
        if resident == 0:
            return BlockPrice(inf, inf, 0, 0, 0, LAUNCH, units, 0, 0, usage)
        bytes_ = self._memory_bytes(runs, grid, resident)
        return self._total(runs, schedule, usage, units, resident, bytes_)

    def runs(self, schedule: BlockSchedule) -> tuple[StageRun, ...]:
        """What each stage does in a unit."""
        key = schedule.blocks, schedule.parallel
        if key not in self._runs:
            pairs = zip(self.facts.stages, self.facts.cuts(schedule), strict=True)
            self._runs[key] = tuple(facts.run(each, self._common) for facts, each in pairs)
        return self._runs[key]

    def multiplies(self, schedule: BlockSchedule) -> bool:
        """Whether some stage multiplies matrices, whose loads are fetched ahead."""
        return any(run.matrix is not None for run in self.runs(schedule))

    def _total(
        self,
        runs: Sequence[StageRun],
        schedule: BlockSchedule,
        usage: Usage,
        units: int,
        resident: int,
        bytes_: float,
    ) -> BlockPrice:
        dram = bytes_ / (self.profile.bandwidth * _MEMORY_SHARE)
        load = _FAR if dram > 0 else _NEAR
        steps = [self._step(run, schedule) for run in runs]
        busy = sum(run.steps * step for run, step in zip(runs, steps, strict=True))
        link = sum(m.bytes for run in runs for m in run.moved) / self._link
        spilled = usage.private * schedule.warps * self.profile.lanes
        # What is spilled is written and read again in every step of the longest loop.
        link += 2 * spilled * max((run.steps for run in runs), default=1) / self._link
        chain = load + sum(
            self._waits(run, step, schedule, load) for run, step in zip(runs, steps, strict=True)
        )
        stores = sum(m.bytes for run in runs for m in run.moved if m.touch.store)
        chain += stores / self._link + spilled / self._link
        own = -(-units // self.profile.processors)
        rounds = -(-own // resident)
        compute, latency = own * busy, rounds * chain
        l2 = max(sum(m.total for run in runs for m in run.moved) / self._cache, own * link)
        # A unit's waiting includes its arithmetic; what several share slows each other.
        together = (max(compute, latency) ** 4 + dram**4 + l2**4) ** 0.25
        return BlockPrice(
            LAUNCH + together, compute, dram, l2, latency, LAUNCH, units, resident,
            round(bytes_), usage,
        )  # fmt: skip

    # ---- arithmetic -----------------------------------------------------------------------------

    def _step(self, run: StageRun, schedule: BlockSchedule) -> float:
        """Seconds of one block of a stage on a processor of its own."""
        threads = schedule.warps * self.profile.lanes
        matrix, together = run.matrix, self.profile.matrix_warps
        if matrix is None:
            return max(run.elements, threads) * run.ops / (self._lanes * _LANE_SHARE)
        rate = dict(self.profile.matrix).get(matrix.dtype)
        if rate is None:
            return self._lane_product(matrix, threads)
        rate *= _MATRIX_SHARE / self.profile.processors
        size = 4 if matrix.dtype == "f32" else 2
        rows, columns = _warps_along(schedule.warps, matrix)
        if together > 1:
            # Each instruction reads both operands from shared memory, 16 rows a warp.
            if matrix.rows >= LEAST_SIDE * together:
                rows, columns = matrix.rows // (LEAST_SIDE * together), 1
            else:
                rate *= _ONE_WARP_SHARE
        read = matrix.depth * size * (matrix.rows * columns + matrix.columns * rows)
        flops = 2 * matrix.rows * matrix.columns * matrix.depth
        issue = _ISSUE / self.profile.clock
        return matrix.batch * max(flops / rate, read / self._shared) + issue

    def _lane_product(self, matrix: Matrix, threads: int) -> float:
        """A product of blocks by multiply-adds of lanes: each has a rectangle of the results and
        loads a row and a column of operands for every step."""
        rows, columns = _lane_sides(matrix, threads)
        count = matrix.rows * matrix.columns * matrix.depth * matrix.batch
        return count * (1 + (rows + columns) / (rows * columns)) / (self._lanes * _LANE_SHARE)

    # ---- waiting --------------------------------------------------------------------------------

    def _waits(self, run: StageRun, step: float, schedule: BlockSchedule, load: float) -> float:
        """Seconds of a stage in a unit that is alone: its blocks, and loads that nobody hides.

        Loads of products are in flight while earlier blocks are multiplied."""
        loads = any(not m.touch.store for m in run.moved)
        multiplied = run.matrix is not None
        ahead = schedule.stages - 1 if multiplied else 0
        one = step + (_BARRIER * schedule.warps / 4 if multiplied else 0)
        if loads and run.steps > 1:
            bytes_ = sum(m.bytes for m in run.moved if not m.touch.store) / run.steps
            wait = load + bytes_ / self._link
            one = max(one, wait / ahead) if ahead else one + wait
        across = (run.steps if self._streams else 1) * _ACROSS if run.across else 0.0
        across *= sqrt(schedule.warps / 4)
        return run.steps * one + across

    # ---- memory ---------------------------------------------------------------------------------

    def _memory_bytes(self, runs: Sequence[StageRun], grid: Sequence[Cut], resident: int) -> float:
        """Bytes from and to memory: once, where the cache keeps all; else what each round reads,
        units of a round sharing it.  Small values wait in the cache for their reader."""
        kept, moved = self.profile.cache * _KEPT, [m for run in runs for m in run.moved]
        once = sum(m.unique for m in moved)
        total = 0.0
        rounds, spans = self._round(grid, resident)
        for each in moved:
            if each.unique <= kept and not each.touch.constant:
                continue
            found = each.unique
            if not each.touch.store and once > self.profile.cache / 2:
                inner = {v: spans.get(v, trips(v)) for v in each.touch.loops}
                found = max(found, rounds * each.touch.bytes_in(inner, SECTOR))
            total += min(found, max(each.total, each.unique))
        return total

    def _round(self, grid: Sequence[Cut], resident: int) -> tuple[float, dict[Var, int]]:
        """How many rounds all units take, and how far the loops of the grid run in one."""
        rest = self.profile.processors * resident
        rounds = 1.0
        spans: dict[Var, int] = {}
        for each in reversed(grid):
            steps = min(each.steps, rest)
            rest = max(1, rest // steps)
            rounds *= each.steps / steps
            spans.update(each.spans(steps * each.block))
        return rounds, spans

    # ---- residency ------------------------------------------------------------------------------

    def resident(self, usage: Usage, schedule: BlockSchedule) -> int:
        """Units that a processor holds at once; 0 where it holds none."""
        device = self.profile
        threads = schedule.warps * device.lanes
        registers = -(-max(usage.registers, 16) // 8) * 8
        if usage.shared > device.shared or usage.registers > device.lane_registers:
            return 0
        return min(
            _MOST_UNITS,
            device.threads // threads,
            device.registers // (registers * threads),
            device.shared_all // (usage.shared + _OWN_SHARED),
        )

    def _usage(self, runs: Sequence[StageRun], schedule: BlockSchedule) -> Usage:
        """Registers and shared memory as far as blocks tell."""
        threads = schedule.warps * self.profile.lanes
        stored = operands = shared = passing = 0
        for run in runs:
            matrix = run.matrix
            if matrix is None:
                streams = 1 + sum(not m.touch.store for m in run.moved)
                passing = max(passing, run.elements * min(streams, 4))
                shared = max(shared, 4 * run.results if run.across else 0)
                continue
            stored += run.results
            loaded = matrix.batch * (matrix.rows + matrix.columns) * matrix.depth
            stages = max(1, schedule.stages if run.steps > 1 else 1)
            shared += stages * loaded * _BYTES.get(matrix.dtype, 2)
            if dict(self.profile.matrix).get(matrix.dtype) is None:
                # A factor that another stage made is in registers for the whole sum.
                depth = 8.0 if run.steps > 1 else max(8.0, _RESIDENT_SHARE * matrix.depth)
                operands = max(operands, round(depth * sum(_lane_sides(matrix, threads))))
        chained = sum(run.matrix is not None for run in runs) > 1
        live = stored + passing if chained or self._streams else max(stored, passing)
        registers = _OWN_REGISTERS + operands + -(-live // threads)
        return Usage(registers, 0, shared)


def _warps_along(warps: int, matrix: Matrix) -> tuple[int, int]:
    """How many warps lie along rows and columns, each with a block as square as can be."""
    rows = columns = 1
    while rows * columns < warps:
        if matrix.rows * columns >= matrix.columns * rows:
            rows *= 2
        else:
            columns *= 2
    return rows, columns


def _lane_sides(matrix: Matrix, threads: int) -> tuple[float, float]:
    """The rectangle of results that one lane sums."""
    count = max(1.0, matrix.rows * matrix.columns * matrix.batch / threads)
    side = count**0.5
    return side, count / side
