"""Prices block schedules: the seconds of a tile group on a GPU, and which resource limits them.

    8192 x 8192 x 8192 in f16, blocks 128 x 256 x 64, 8 warps, 3 stages, on 132 processors
      ->  2048 tiles, one a processor: 16 rounds ; 1.4 ms of matrix units, 0.6 ms of memory

The price is a roofline of each processor (Williams, Waterman, Patterson 2009). Processors run tiles
in whole rounds. The tiles that a processor holds at once share its matrix units and its link to the
cache. A round takes at least as long as a tile waits for its loads (Little's law: bytes in flight
over latency). Registers, shared memory and lanes limit the tiles that a processor holds. All
processors share the cache and memory, and the tiles of a round share what they read.
"""

from collections.abc import Sequence
from math import inf, prod, sqrt

from tcc.frozen import frozen
from tcc.ir.index import Var
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify_gpu import LEAST_SIDE
from tcc.schedule.alternatives import IMPOSSIBLE, Seconds
from tcc.schedule.gpu.schedule import FLOAT8_NAME, BlockProfile, BlockSchedule
from tcc.schedule.gpu.work import SECTOR, Cut, GroupFacts, Matrix, StageRun
from tcc.schedule.nest import trips
from tcc.zipped import zip_equal

# Times in seconds. LAUNCH: from the end of a kernel in a captured graph until the next kernel's
# tiles run. _FAR and _NEAR: a load from memory and from the cache. _BARRIER: a barrier of four
# warps. _ACROSS: combining the lanes of four warps through shared memory.
LAUNCH = 2e-6
_FAR, _NEAR, _BARRIER, _ACROSS = 6e-7, 2.5e-7, 2e-8, 1.5e-7
# Bytes that a processor moves in a cycle. _SHARED_BYTES: from shared memory. _LINK_BYTES: from the
# cache, if it is the only processor to do so. _CACHE_BYTES: from the cache, if all processors do.
# (Makers state 5120 bytes for the 108 processors of an A100, and 16384 for the 304 of an MI300X.)
_SHARED_BYTES, _LINK_BYTES, _CACHE_BYTES = 128, 64, 48
# The fraction of the peak rate that is reached: by copies of memory (_MEMORY_SHARE), by matrix
# units at full clock (_MATRIX_SHARE), and by dependent multiply-adds of lanes (_LANE_SHARE).
_MEMORY_SHARE, _MATRIX_SHARE, _LANE_SHARE = 0.9, 0.8, 0.75
# The fraction of the rate of matrix units that a single warp reaches on a device whose matrix
# instructions are executed by several warps together.
_ONE_WARP_SHARE = 0.6
# If one block covers the whole sum, lanes keep this fraction of the sum's factors in registers.
_RESIDENT_SHARE = 0.6
# Cycles of a processor in which lanes turn an element of a block whose neighbours are not terms of
# one sum. (TF32 matmuls with a row-major second operand took 0.96 to 1.04 cycles on an H200.)
_TURN = 1.0
# Cycles in which matrix units wait for the instructions of the next block.
_ISSUE = 64
# The fraction of the cache that keeps its data from one kernel to the next.
_CACHE_SHARE = 0.25
# Bytes of an element of an operand, by type; a type without an entry has two.
_BYTES = {"f32": 4, "i8": 1, FLOAT8_NAME: 1}
# _MOST_TILES: the most tiles that a processor holds at once. _OWN_SHARED: bytes of shared memory
# that the system reserves for each tile. _OWN_REGISTERS: registers of a lane for addresses and
# masks.
_MOST_TILES, _OWN_SHARED, _OWN_REGISTERS = 32, 1024, 32


@frozen
class Usage:
    """The resources of a kernel.

    `registers`: the registers of each lane. `private`: bytes that each lane spills, because
    registers do not hold all values. `shared`: bytes of shared memory of each tile.
    """

    registers: int
    private: int
    shared: int


@frozen
class BlockPrice:
    """Seconds of one launch, and the seconds that each resource alone would take.

    `compute` is arithmetic, `dram` traffic of memory, and `l2` traffic of the cache. `latency` is
    the time of a tile's arithmetic and of its waits for loads and barriers, over all rounds.
    `units` is the number of tiles, of which a processor holds `resident` at once. `bytes` are the
    bytes from and to memory.
    """

    seconds: Seconds
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
        """Returns the resource that takes longest."""
        names = ("compute", "dram", "l2", "latency", "launch")
        slowest: str = max(names, key=lambda name: float(getattr(self, name)))
        return slowest


def streamed(profile: BlockProfile, bytes_: float) -> float:
    """Returns the seconds of a kernel that only moves `bytes_` bytes.

    The bytes come from the cache if it can hold them, else from memory.
    """
    rate = profile.bandwidth * _MEMORY_SHARE
    if bytes_ <= profile.cache * _CACHE_SHARE:
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
        # Rates in bytes a second; `_lanes` is in multiply-adds a second.
        self._shared = _SHARED_BYTES * profile.clock
        self._link = _LINK_BYTES * profile.clock
        self._cache = _CACHE_BYTES * profile.clock * profile.processors
        self._lanes = profile.flops / 2 / profile.processors

    def price(self, schedule: BlockSchedule, built: Usage | None = None) -> BlockPrice:
        """Returns the price of the group's kernel under `schedule`.

        `built` is the usage that a compiler has reported for the kernel. If it is None, the usage
        is estimated, and the seconds are infinite if the device cannot hold a tile.
        """
        runs = self.runs(schedule)
        grid = self.facts.grid(schedule)
        usage = built or self._usage(runs, schedule)
        tiles = prod(axis.steps for axis in grid)
        resident = self.resident(usage, schedule)
        if built is not None:
            resident = max(1, resident)
        if resident == 0:
            return BlockPrice(IMPOSSIBLE, inf, 0, 0, 0, LAUNCH, tiles, 0, 0, usage)
        bytes_ = self._memory_bytes(runs, grid, resident)
        return self._price_of(runs, schedule, usage, tiles, resident, bytes_)

    def runs(self, schedule: BlockSchedule) -> tuple[StageRun, ...]:
        """Returns the work of each stage in one tile."""
        key = schedule.blocks, schedule.parallel
        if key not in self._runs:
            pairs = zip_equal(self.facts.stages, self.facts.cuts(schedule))
            self._runs[key] = tuple(facts.run(cuts, self._common) for facts, cuts in pairs)
        return self._runs[key]

    def multiplies(self, schedule: BlockSchedule) -> bool:
        """Returns True if a stage multiplies matrices, so that loads may be in flight several steps
        ahead."""
        return any(stage.matrix is not None for stage in self.runs(schedule))

    def _price_of(
        self,
        runs: Sequence[StageRun],
        schedule: BlockSchedule,
        usage: Usage,
        tiles: int,
        resident: int,
        bytes_: float,
    ) -> BlockPrice:
        """Returns the price from the work `runs` of the stages in a tile.

        A processor holds `resident` of all `tiles` at once. `bytes_` are the bytes from and to
        memory.
        """
        dram = bytes_ / (self.profile.bandwidth * _MEMORY_SHARE)
        load = _FAR if dram > 0 else _NEAR
        steps = [(stage, self._step(stage, schedule)) for stage in runs]
        busy = sum(stage.steps * step for stage, step in steps)
        transfers = [m for stage in runs for m in stage.traffic]
        link = sum(m.bytes for m in transfers) / self._link
        spilled = usage.private * schedule.warps * self.profile.lanes
        # Values that registers do not hold are stored and loaded again in every step of the longest
        # loop.
        link += 2 * spilled * max((stage.steps for stage in runs), default=1) / self._link
        chain = load + sum(self._waits(*step, schedule, load) for step in steps)
        stores = sum(m.bytes for m in transfers if m.touch.store)
        chain += stores / self._link + spilled / self._link
        share = -(-tiles // self.profile.processors)
        rounds = -(-share // resident)
        compute, latency = share * busy, rounds * chain
        l2 = max(sum(m.all_bytes for m in transfers) / self._cache, share * link)
        # `latency` includes a tile's arithmetic, so the larger of the two counts. Memory and the
        # cache, which tiles share, slow each other and the tiles.
        together = (max(compute, latency) ** 4 + dram**4 + l2**4) ** 0.25
        return BlockPrice(
            LAUNCH + together, compute, dram, l2, latency, LAUNCH, tiles, resident,
            round(bytes_), usage,
        )  # fmt: skip

    # ---- arithmetic -----------------------------------------------------------------------------

    def _step(self, stage: StageRun, schedule: BlockSchedule) -> float:
        """Returns the seconds of one block of a stage, if a processor runs a single tile."""
        threads = schedule.warps * self.profile.lanes
        matrix, group_warps = stage.matrix, self.profile.matrix_warps
        if matrix is None:
            return max(stage.elements, threads) * stage.ops / (self._lanes * _LANE_SHARE)
        rate = dict(self.profile.matrix).get(matrix.dtype)
        if rate is None:
            return self._lane_matmul(matrix, threads)
        rate *= _MATRIX_SHARE / self.profile.processors
        size = 4 if matrix.dtype == "f32" else 2
        rows, columns = _warps_along(schedule.warps, matrix)
        grouped, turning = matrix.rows >= LEAST_SIDE * group_warps, 0.0
        if group_warps > 1:
            # A single warp reads one term of f32 at once, but several neighbours of narrower types.
            if matrix.dtype in self.profile.terms and (grouped or matrix.dtype != "f32"):
                turning = matrix.scattered * _TURN / self.profile.clock
            # One instruction of several warps reads both operands from shared memory, and each warp
            # has 16 rows of its result.
            if grouped:
                rows, columns = matrix.rows // (LEAST_SIDE * group_warps), 1
            else:
                rate *= _ONE_WARP_SHARE
        shared_bytes = matrix.depth * size * (matrix.rows * columns + matrix.columns * rows)
        flops = 2 * matrix.rows * matrix.columns * matrix.depth
        issue = _ISSUE / self.profile.clock
        moves = shared_bytes / self._shared + turning
        return matrix.batch * max(flops / rate, moves) + issue

    def _lane_matmul(self, matrix: Matrix, threads: int) -> float:
        """Returns the seconds of a matmul of blocks without matrix units.

        Each lane computes a rectangle of the results by multiply-adds. In each step of the sum it
        loads a row and a column of operands.
        """
        rows, columns = _lane_rectangle(matrix, threads)
        count = matrix.rows * matrix.columns * matrix.depth * matrix.batch
        return count * (1 + (rows + columns) / (rows * columns)) / (self._lanes * _LANE_SHARE)

    # ---- waiting --------------------------------------------------------------------------------

    def _waits(self, stage: StageRun, step: float, schedule: BlockSchedule, load: float) -> float:
        """Returns the seconds of a stage, if a processor runs a single tile.

        They are the time of its blocks, `step` for each, plus the time of loads that no arithmetic
        hides. A load takes `load` seconds until its first byte arrives. The loads of a matmul are
        in flight while earlier blocks are multiplied.
        """
        loads = any(not m.touch.store for m in stage.traffic)
        multiplied = stage.matrix is not None
        ahead = schedule.stages - 1 if multiplied else 0
        step_seconds = step + (_BARRIER * schedule.warps / 4 if multiplied else 0)
        if loads and stage.steps > 1:
            bytes_ = sum(m.bytes for m in stage.traffic if not m.touch.store) / stage.steps
            wait = load + bytes_ / self._link
            step_seconds = max(step_seconds, wait / ahead) if ahead else step_seconds + wait
        across = (stage.steps if self._streams else 1) * _ACROSS if stage.across else 0.0
        across *= sqrt(schedule.warps / 4)
        return stage.steps * step_seconds + across

    # ---- memory ---------------------------------------------------------------------------------

    def _memory_bytes(self, runs: Sequence[StageRun], grid: Sequence[Cut], resident: int) -> float:
        """Returns the bytes from and to memory.

        A round is the tiles that run at the same time: `resident` tiles on each processor. If the
        cache keeps all bytes of the kernel, each byte counts once. Otherwise a byte counts once for
        each round that reads it, because the tiles of a round share it. Small values other than
        constants do not count, because they stay in the cache from the kernel that stores them to
        the kernel that reads them.
        """
        cached_bytes, transfers = (
            self.profile.cache * _CACHE_SHARE,
            [m for stage in runs for m in stage.traffic],
        )
        unique_bytes = sum(m.unique for m in transfers)
        bytes_ = 0.0
        rounds, spans = self._round(grid, resident)
        for transfer in transfers:
            if transfer.unique <= cached_bytes and not transfer.touch.constant:
                continue
            moved_bytes = transfer.unique
            if not transfer.touch.store and unique_bytes > self.profile.cache / 2:
                inner = {v: spans.get(v, trips(v)) for v in transfer.touch.loops}
                moved_bytes = max(moved_bytes, rounds * transfer.touch.bytes_in(inner, SECTOR))
            bytes_ += min(moved_bytes, max(transfer.all_bytes, transfer.unique))
        return bytes_

    def _round(self, grid: Sequence[Cut], resident: int) -> tuple[float, dict[Var, int]]:
        """Returns the number of rounds of all tiles, and the elements of a round along each
        loop."""
        free = self.profile.processors * resident
        rounds = 1.0
        spans: dict[Var, int] = {}
        for axis in reversed(grid):
            steps = min(axis.steps, free)
            free = max(1, free // steps)
            rounds *= axis.steps / steps
            spans.update(axis.spans(steps * axis.block))
        return rounds, spans

    # ---- residency ------------------------------------------------------------------------------

    def resident(self, usage: Usage, schedule: BlockSchedule) -> int:
        """Returns the number of tiles that a processor holds at once; 0 if it cannot hold one."""
        device = self.profile
        threads = schedule.warps * device.lanes
        registers = -(-max(usage.registers, 16) // 8) * 8
        if usage.shared > device.shared or usage.registers > device.lane_registers:
            return 0
        return min(
            _MOST_TILES,
            device.threads // threads,
            device.registers // (registers * threads),
            device.shared_all // (usage.shared + _OWN_SHARED),
        )

    def _usage(self, runs: Sequence[StageRun], schedule: BlockSchedule) -> Usage:
        """Returns an estimate of the registers and shared memory from the sizes of blocks."""
        threads = schedule.warps * self.profile.lanes
        accumulators = operands = shared = passing = 0
        for stage in runs:
            matrix = stage.matrix
            if matrix is None:
                streams = 1 + sum(not m.touch.store for m in stage.traffic)
                passing = max(passing, stage.elements * min(streams, 4))
                shared = max(shared, 4 * stage.results if stage.across else 0)
                continue
            accumulators += stage.results
            loaded = matrix.batch * (matrix.rows + matrix.columns) * matrix.depth
            stages = max(1, schedule.stages if stage.steps > 1 else 1)
            shared += stages * loaded * _BYTES.get(matrix.dtype, 2)
            if dict(self.profile.matrix).get(matrix.dtype) is None:
                # If one block covers the sum, a factor from another stage stays in registers.
                depth = 8.0 if stage.steps > 1 else max(8.0, _RESIDENT_SHARE * matrix.depth)
                operands = max(operands, round(depth * sum(_lane_rectangle(matrix, threads))))
        chained = sum(stage.matrix is not None for stage in runs) > 1
        live = accumulators + passing if chained or self._streams else max(accumulators, passing)
        registers = _OWN_REGISTERS + operands + -(-live // threads)
        return Usage(registers, 0, shared)


def _warps_along(warps: int, matrix: Matrix) -> tuple[int, int]:
    """Returns how many warps share the rows, and how many share the columns, of a block.

    Their numbers make the part of each warp as square as possible.
    """
    rows = columns = 1
    while rows * columns < warps:
        if matrix.rows * columns >= matrix.columns * rows:
            rows *= 2
        else:
            columns *= 2
    return rows, columns


def _lane_rectangle(matrix: Matrix, threads: int) -> tuple[float, float]:
    """Returns the number of rows and of columns of results that one lane accumulates."""
    count = max(1.0, matrix.rows * matrix.columns * matrix.batch / threads)
    side = count**0.5
    return side, count / side
