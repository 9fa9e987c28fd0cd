"""Prices a tile group under a schedule in seconds, without building its IR.

A kernel takes as long as its busiest resource: vector arithmetic, load and store ports, the traffic
of each of the three caches, or the traffic of memory. Arithmetic hides only a part of the traffic
from L3 and from memory; the exposed part is added to the time of arithmetic.
Threads share the tiles, and the price is the time of the thread with the most tiles. The first use
of a panel of weights that is not prefetched waits for memory; this time is added too.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product, takewhile
from math import ceil, exp, log2, prod
from typing import Any

from tcc.frozen import frozen
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Var
from tcc.ir.op import Array
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.alternatives import Seconds
from tcc.schedule.cpu.along import loops_of, nest_along
from tcc.schedule.cpu.cache_traffic import (
    CacheTraffic,
    LoopOver,
    NestLoops,
    computed,
    nest_loops,
    traffic_of,
)
from tcc.schedule.cpu.cost_parts import (
    CoreCycles,
    combined,
    first_pass,
    follows,
    inside_scratch,
    lane_distance,
    vector_of,
    with_parts,
)
from tcc.schedule.cpu.grid import cuts_of, shares_of, uneven
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.cpu.schedule import Nest, Schedule, even
from tcc.schedule.cpu.work import StageWork, group_work, is_global, writer_of
from tcc.schedule.footprint import LINE, Touch
from tcc.schedule.masked_terms import covered, moves_with
from tcc.schedule.nest import (
    FEW_APART,
    contraction_factors,
    contracts,
    is_open,
    neighbours,
    of_pairs,
    points,
    trips,
)
from tcc.schedule.zero_terms import terms_along, terms_share
from tcc.zipped import zip_equal

# The time for each further entry of the innermost loop of a sum, as a fraction of `Machine.loop`.
_ENTRY = 0.147
# With at most this many additions in a register block, the processor starts the next block early.
_AHEAD = 32
_LANE = 2  # A store of a single lane to its own cache line takes as long as so many stores.
_FEW = 256  # The price distributes at most so many tiles to threads one by one.
# L3 keeps 1 / _RESULT_PARTS of its size of results until they are read (two cores of a Zen 5).
_RESULT_PARTS = 4
# A thread's tiles are cut into at most this many pieces (runtime/src/threads.c).
_PIECES = 16


@frozen
class Price:
    """`seconds` of a launch, and the seconds that each resource alone would take.

    The resources are `compute` (arithmetic), `ports` (loads and stores), and `l2`, `l3` and `dram`
    (traffic from these levels). `imbalance` is the busiest thread's work divided by the mean of all
    threads; `compute` and `ports` contain it. `launch` is the time to start the threads.
    """

    seconds: Seconds
    compute: float
    ports: float
    l2: float
    l3: float
    dram: float
    imbalance: float
    launch: float


class Pricer:
    """Prices groups for one machine, and caches the work that it has counted for each group.

    `constants` is the number of bytes of the model's weights. Weights that a cache cannot keep from
    run to run come from the next level; if None, all come from memory. If a cache holds a share of
    all bytes that a group touches, it is assumed to hold that share of each computed operand. With
    `pairs`, one instruction multiplies two bf16 in the time of one f32.
    """

    def __init__(
        self, machine: Machine, constants: int | None = None, *, pairs: bool = False
    ) -> None:
        # Pricers with equal keys give equal prices. The key has the fractions of the constants that
        # the L2 and L3 caches lose between two runs.
        lost = tuple(cache.lost(constants) for cache in (machine.l2, machine.l3))
        self.machine, self.key = machine, (machine, lost, pairs)
        self.rates = machine.rates(constants)
        # Pricers of one machine may share this table.
        self.counted: dict[TileGroup, tuple[StageWork, ...]] = {}
        self._prices: dict[Any, Price] = {}

    def price(
        self, group: TileGroup, schedule: Schedule, *, single_core: bool = False, live: int = 0
    ) -> Price:
        """Returns the price of `group`, on one core if `single_core`. Symbolic sizes count as
        typical.

        `live`: the bytes of memory that a run uses again and again; L3 loses what it cannot hold.
        """
        key = group, schedule, single_core, live
        if key not in self._prices:
            if group not in self.counted:
                self.counted[group] = group_work(group, self.machine)
            machine = replace(self.machine, cores=1) if single_core else self.machine
            work = self.counted[group]
            self._prices[key] = _Pricing(machine, *self.key[1:], *key[:2], work, live).price()
        return self._prices[key]


class _Pricing:
    """Computes the price of one group under one schedule."""

    def __init__(
        self,
        machine: Machine,
        lost: tuple[float, ...],
        pairs: bool,
        group: TileGroup,
        schedule: Schedule,
        stages: tuple[StageWork, ...],
        live: int = 0,
    ) -> None:
        self.machine, self.lost, self.pairs, self.gone = machine, lost, pairs, machine.l3.lost(live)
        self.group, self.schedule, self.stages = group, schedule, stages
        named = {v.name: v for v in group.common}
        self.parallel = [named[name] for name in schedule.parallel]
        self.tile = {v: schedule.tile_size(v.name) for v in self.parallel}
        self.counts = [ceil(trips(v) / n) for v, n in self.tile.items()]
        self.tile_count = prod(self.counts)
        self.threads = min(machine.cores, max(1, self.tile_count))
        self.stream_loop = None if group.stream is None else group.stream.loop
        self.covered = self._covered()
        self.needed: dict[Var, int] = {}  # the elements of the streaming loop that a tile computes
        if self.covered is not None and (loop := self.stream_loop) is not None:
            self.needed[loop] = ceil(trips(loop) * self.covered.mean())
        self.strips = self._strips()
        self.shared = self._shared()
        self.exchanged = self._exchanged()
        # For each source, the largest fraction of its vectors that cross a cache line, so far.
        self.across: dict[int | StageRef, float] = {}
        # For each source, the share by which gaps prolong its memory traffic (`Touch.gap`).
        self.gaps: dict[int | StageRef, float] = {}

    def _covered(self) -> Array | None:
        """Returns the fraction of the streaming loop that each tile computes; None if it is all."""
        if not self.schedule.skips:
            return None
        return covered(self.group, tuple(self.tile.items()), self.schedule.stream_block)

    def _strips(self) -> dict[Var, tuple[int, int]]:
        """Maps the row loop of each strip to (rows of one tile, rows of all tiles). A strip is the
        rows of a stage that a tile computes for its later stages (`fuse.sliding_window`). Rows that
        two neighbouring tiles compute count twice."""
        strips = {}
        for strip in (s.strip for s in self.group.stages):
            if strip is not None and strip.rows is not strip.loop:
                tile = max(1, min(trips(strip.loop), self.schedule.tile_size(strip.loop.name)))
                row_count = trips(strip.rows)
                rows, tiles = min(row_count, strip.count(tile)), ceil(trips(strip.loop) / tile)
                twice = max(0, strip.count(1) - strip.scale)
                strips[strip.rows] = rows, min(rows * tiles, row_count + (tiles - 1) * twice)
        return strips

    def _shared(self) -> frozenset[int]:
        """Returns the numbers of the stages that a call of the kernel computes once, before its
        tiles. They are the leading stages whose results are equal for all tiles."""
        if self.group.stream is not None:
            return frozenset()
        cut_loops = {v for v, n in zip_equal(self.parallel, self.counts) if n > 1}
        nests = takewhile(
            lambda nest: not any(cut_loops & follows(self.group.stages[n]) for n in nest.stages),
            self.schedule.nests,
        )
        return frozenset(number for nest in nests for number in nest.stages)

    def _times_computed(self, number: int) -> int:
        """Returns how often a stage is computed. A shared stage (`_shared`) is computed once for
        each range of tiles that a thread takes. Another stage is computed again for every tile
        along the loops on which it does not depend."""
        if number in self.shared:
            pieces = min(_PIECES, self.tile_count / self.threads)
            return self.threads * (1 + ceil(log2(pieces))) if self.threads > 1 else 1
        loops = follows(self.group.stages[number])
        return prod(n for v, n in zip_equal(self.parallel, self.counts) if v not in loops)

    def price(self) -> Price:
        machine = self.machine
        core = self._core()
        imbalance = self._imbalance()
        second = imbalance / (self.threads * machine.hertz)
        l2, l3, dram, own_dram, cold, reuse = self._traffic()
        # A core has too few loads in flight to hide all traffic from L3 and from memory.
        busy = combined(core.either * second, l2, machine.rivals)
        busy = max(busy + machine.l3_exposed * l3, l3)
        waits = busy + machine.memory_exposed * own_dram
        if not any(n.ahead for n in self.schedule.nests):
            busy = first_pass(busy, cold, reuse)
        launch = machine.fork if self.threads > 1 else machine.launch
        seconds = Seconds(max(busy, waits, dram) + launch)
        compute, ports = core.compute * second, core.ports * second
        return Price(seconds, compute, ports, l2, l3, dram, imbalance, launch)

    def _imbalance(self) -> float:
        """Returns the busiest thread's work divided by the mean work of all threads. A thread that
        is free takes the next tile, as at run time."""
        if self.threads == 1:
            return 1.0
        if self.tile_count > _FEW:
            return ceil(self.tile_count / self.threads) * self.threads / self.tile_count
        parts = (even(trips(v), n, self._full_tiles(v)) for v, n in self.tile.items())
        shares = None if self.covered is None else tuple(self.covered.reshape(-1).tolist())
        return uneven(tuple(parts), shares, self.threads)

    def _full_tiles(self, var: Var) -> bool:
        """Returns True if all tiles along a loop but the last are full, as along vector loops and
        loops of symbolic size. Along other loops, tile sizes differ by at most one."""
        return is_open(var) or any(n.vector == var.name for n in self.schedule.nests)

    # ---- arithmetic and ports -----------------------------------------------------------------

    def _core(self) -> CoreCycles:
        core = CoreCycles()
        for nest in self.schedule.nests:
            for number in nest.all_stages:
                is_inner = number in nest.along
                stage_nest = nest_along(nest, loops_of(self.group, nest)) if is_inner else nest
                self._stage(core, stage_nest, self.stages[number], self._times_computed(number))
        return core

    def _stage(self, core: CoreCycles, nest: Nest, work: StageWork, repeats: float) -> None:
        """Adds the cycles of a stage that is computed `repeats` times."""
        stage = work.stage
        if self.covered is not None and self.stream_loop in stage.loops:
            repeats *= float(self.covered.mean())
        blocks = dict(nest.blocks)
        blocked: list[Var] = []
        sizes: list[tuple[tuple[int, int], ...]] = []
        for var in stage.iters:
            cuts = self._cuts(var, blocks.get(var.name, 1), var.name == nest.vector)
            if len(cuts) == 1 and cuts[0][0] == 1:
                repeats *= cuts[0][1]
            else:
                blocked.append(var)
                sizes.append(cuts)
        touches = self._touches(nest, work)
        for combo in product(*sizes):
            spans = {v: size for v, (size, _) in zip_equal(blocked, combo)}
            count = repeats * prod(n for _, n in combo)
            compute, ports = self._block(nest, work, touches, spans)
            core.compute += count * compute
            core.ports += count * ports
            core.either += count * combined(compute, ports, self.machine.rivals)

    def _touches(self, nest: Nest, work: StageWork) -> list[Touch]:
        """Returns a stage's loads and stores outside of the registers of its nest."""
        return [
            t
            for t in work.touches
            if not (isinstance(t.source, StageRef) and t.source.stage in nest.all_stages)
            or (t.store and t.source in self.exchanged)
        ]

    def _exchanged(self) -> frozenset[StageRef]:
        """Returns the results that another nest reads, from the tile's scratch."""
        return frozenset(
            touch.source
            for nest in self.schedule.nests
            for number in nest.all_stages
            for touch in self.stages[number].touches
            if isinstance(touch.source, StageRef)
            and not touch.store
            and touch.source.stage not in nest.all_stages
        )

    def _cuts(self, var: Var, block: int, full_blocks: bool) -> tuple[tuple[int, int], ...]:
        """Returns pairs (size, count) of the blocks along a loop, over all tiles of the grid."""
        size = trips(var)
        if var in self.strips:  # the rows of a strip are computed one by one
            return ((1, self.strips[var][1]),)
        tile = self.tile.get(var, size)
        return cuts_of(size, tile, block, self._full_tiles(var), full_blocks)

    def _block(
        self, nest: Nest, work: StageWork, touches: list[Touch], spans: Mapping[Var, int]
    ) -> tuple[float, float]:
        """Returns the cycles of arithmetic, and of loads and stores, of one block of a stage."""
        machine, stage = self.machine, work.stage
        vector = vector_of(nest, stage, spans)
        rows = prod(size for v, size in spans.items() if v is not vector)
        lanes = 1 if vector is None else work.lanes
        wide = 1 if vector is None else ceil(spans.get(vector, 1) / lanes)
        steps = prod(ceil(trips(v) / (lanes if v is vector else 1)) for v in stage.reduce)
        steps = ceil(steps * terms_share(stage, nest.blocks) / self._at_once(stage, vector))
        sums, k_blocks = rows * wide, self._k_block_trips(nest, stage.reduce)
        loads = stores = 0.0
        is_contraction = contracts(stage)
        work = with_parts(nest, work, vector, spans, self.tile)
        covered = prod(self.tile.get(v, trips(v)) for v in spans if v is not vector)
        if nest.packed and is_contraction:  # a tile packs the operand once for all rows
            work = replace(work, ops=1 + (work.ops - 1) / covered, heavy=work.heavy / covered)
            stores = wide * steps * rows / covered
            loads = 2 * stores  # each packed vector is loaded from two lines
        hidden = bool(nest.along) and bool(stage.reduce)
        chains = ceil(nest.block(vector.name) / lanes) if vector in stage.reduce else 1
        compute = self._arithmetic(work, vector, steps, sums, k_blocks, chains, hidden=hidden)
        compute += stores / machine.stores  # packing does not overlap the sums
        for touch in touches:
            rows_of = prod(s for v, s in spans.items() if v is not vector and v in touch.loops)
            adjacent = (n for v, n in spans.items() if v is not vector and touch.step(v) == 1)
            near_rows = max(adjacent, default=1)
            distance, packed = lane_distance(stage, touch), nest.packed and not touch.store
            instructions = self._instructions(
                touch, vector, wide, lanes, near_rows, distance, packed
            )
            count = touch.times * rows_of * instructions
            if touch.store:
                stores += count
                # Results are stored along the rows, so lanes and rows are transposed in registers.
                if near_rows > 1 and self._step(touch, vector) not in (0, 1):
                    compute += touch.times * rows_of * wide * log2(min(near_rows, lanes))
                continue
            count *= steps if any(v in touch.loops for v in stage.reduce) else 1
            if self._step(touch, vector) is None:
                compute += count  # lanes are gathered one by one, by arithmetic units
            else:
                loads += count
            if touch.step(vector) != 1:
                continue
            elements = wide * lanes
            if not is_contraction and (gap := touch.gap(stage.reduce, elements)):
                self.gaps[touch.source] = gap
            # Evictions do not count if nests exchange values in scratch: BERT's attention took
            # equally long with both storage orders of v.
            if is_contraction and not (packed or self.exchanged):
                evicted = touch.crowded(stage.reduce, elements * touch.size, machine.l1)
                compute += count * (1 - rows / covered) * evicted * LINE / machine.l2.read
        waits = k_blocks * sums
        return compute, max((loads + waits) / machine.loads, (stores + waits) / machine.stores)

    def _at_once(self, stage: GroupStage, vector: Var | None) -> int:
        """Returns how many neighbouring terms of a sum one instruction multiplies: 2 for bf16 if
        the machine has the instruction and exactly one factor varies along the lanes."""
        factors = contraction_factors(stage)
        if factors is None or not of_pairs(stage):
            return neighbours(stage)
        lanes = [vector in loops for loops in factors.loops(stage)]
        return neighbours(stage) if self.pairs and sum(lanes) == 1 else 1

    def _arithmetic(
        self,
        work: StageWork,
        vector: Var | None,
        steps: int,
        sums: int,
        k_blocks: int,
        chains: int,
        *,
        hidden: bool,
    ) -> float:
        """Returns the cycles of arithmetic of a block. The block has `sums` vectors of
        accumulators, and each vector is computed as `chains` independent sums. A reduction has
        `steps` steps. Accumulators are stored and loaded again `k_blocks` times. `hidden`: stages
        that are computed along the reduction hide the latency of its additions."""
        machine, stage = self.machine, work.stage
        compute, heavy = sums * work.ops / machine.fmas, sums * work.heavy
        if not stage.reduce:
            return compute + heavy
        entered = (points(stage.reduce[:-1]) - 1) * _ENTRY * machine.loop
        folds = sums * machine.fold if vector in stage.reduce else 0.0
        few = steps * sums <= _AHEAD
        if hidden or (few and vector not in stage.iters and k_blocks == 0):
            return steps * (compute + heavy) + folds + entered
        # An addition waits for the previous one to the same sum, unless the next block starts.
        wait = 0.0 if few else machine.fma_latency / chains
        compute = steps * (max(compute, wait) + heavy) + entered
        # A sum's end takes `loop`, or the time to fold its lanes if that is longer.
        end = max(machine.loop, folds)
        return compute + max(1, k_blocks) * end + k_blocks * sums * machine.wait

    def _step(self, touch: Touch, vector: Var | None) -> int | None:
        """Returns the distance in elements between neighbouring lanes. It is 0 if all lanes read
        one element, and None if the distances are irregular."""
        step = touch.step(vector)
        if not step or vector not in self.group.cut or not self._in_scratch(touch.source):
            return step
        number = writer_of(self.group, touch.source)
        stage, nest = self.group.stages[number], self.schedule.nest(number)
        inner_loops = inside_scratch(stage, nest, vector, self.group.cut)
        return prod(self.tile.get(v, trips(v)) for v in inner_loops)

    def _instructions(
        self,
        touch: Touch,
        vector: Var | None,
        wide: int,
        lanes: int,
        near_rows: int,
        distance: int,
        packed: bool,
    ) -> float:
        """Returns the issue slots of loads or stores for one row of a block of `wide` vectors.

        `near_rows` rows are neighbours in memory. Lanes `distance` elements apart form a vector too
        (packed words). `packed` vectors never cross a line.
        """
        step = self._step(touch, vector)
        if step == 0 or lanes == 1:
            return 1.0
        if step != touch.step(vector):
            return wide
        if step in (1, distance):
            crossing = 0.0 if packed else touch.crossing(vector, lanes)
            if not touch.store:
                self.across[touch.source] = max(crossing, self.across.get(touch.source, 0.0))
            return wide * (1 + crossing)
        if not touch.store:
            if step is not None and 1 < step <= FEW_APART:
                return wide * (2 * step - 1)
            gather = self.machine.functions.get("gather", self.machine.lanes)
            cycles = wide * gather * lanes / self.machine.lanes
            return cycles if step is None else cycles * self.machine.loads
        if near_rows == 1:
            return wide * lanes * _LANE
        # Lanes and rows are transposed; stores are whole vectors if the rows fill the gaps between
        # lanes.
        return wide if step == near_rows else wide * lanes * ceil(near_rows / lanes) / near_rows

    def _k_block_trips(self, nest: Nest, reduce: tuple[Var, ...]) -> int:
        """Returns how often the sums of a block are stored in scratch and loaded again."""
        k_blocks = dict(nest.k_blocks)
        # If a mask leaves out blocks, prices choose the streaming loop's block, so its sums count.
        if self.covered is not None and (loop := self.stream_loop) in reduce:
            k_blocks[loop.name] = self.schedule.stream_block
        if not k_blocks:
            return 0
        return prod(ceil(trips(v) / k_blocks[v.name]) for v in reduce if v.name in k_blocks)

    # ---- traffic ------------------------------------------------------------------------------

    def _traffic(self) -> tuple[float, ...]:
        """Returns (l2, l3, dram, own_dram, cold, reuse). `l2`, `l3` and `dram` are the seconds of
        the traffic from these levels. `own_dram` is the time of one core's share of the memory
        traffic, if that core runs alone. `cold` is the time to read the largest constant from
        memory once; each of its bytes is loaded `reuse` times."""
        machine, hertz = self.machine, self.machine.hertz
        all_nests, thread_nests = self._nests_of_thread(1), self._nests_of_thread(self.threads)
        computed_bytes = computed(all_nests) / self.threads
        constants = {n for n, buffer in enumerate(self.group.buffers) if buffer.constant}
        first = traffic_of(thread_nests, machine.l1)
        second = traffic_of(thread_nests, machine.l2.size)
        third = traffic_of(all_nests, machine.l3.size)
        for source, part in self.across.items():
            first.by_source[source, False] *= 1 + part * (machine.crossing - 1)
        for border, (source, part) in product((second, third), self.gaps.items()):
            border.by_source[source, False] *= 1 + part
        l2 = first.seconds(machine.l2.read * hertz, machine.l2.write * hertz)
        # The probability that a line is evicted before its next use.
        lost = 1 - exp(-computed_bytes / machine.l2.size)
        second.lose(lost, lost, self.lost[0], constants)
        l3 = second.seconds(machine.l3.read * hertz, machine.l3.write * hertz)
        # The last cache keeps the part of a reused stream that fits; memory serves the remainder.
        lost = 1 - min(1, machine.l3.size / max(1, computed_bytes * self.threads))
        handed = self.gone * (
            1 - exp(-_RESULT_PARTS * computed_bytes * self.threads / machine.l3.size)
        )
        third.lose(max(lost, handed), max(lost, self.gone), self.lost[1], constants)
        cold, reuse = self._reuse(third)
        together = self.threads > 1
        dram = self._from_memory(third, together=together)
        own_dram = self._from_memory(third, together=False) / self.threads
        return l2, l3, dram, own_dram, cold / machine.memory.reading(together=together), reuse

    def _from_memory(self, border: CacheTraffic, *, together: bool) -> float:
        """Returns the seconds of memory traffic; prefetched constants have a rate of their own."""
        memory = self.machine.memory
        ahead = self._fetched_ahead()
        store_bytes = border.total(store=True)
        seconds = store_bytes / (memory.write_all if together else memory.write)
        # A line is read before it is written.
        seconds += self.gone * store_bytes / memory.reading(together=together)
        for (source, store), bytes_ in border.by_source.items():
            if not store:
                seconds += bytes_ / memory.reading(together=together, ahead=source in ahead)
        return seconds

    def _fetched_ahead(self) -> frozenset[int | StageRef]:
        """Returns the constants that a tile prefetches at the full rate of memory, each for one
        block of rows. With several blocks, prefetches wait for arithmetic, as slow as reads."""
        return frozenset(
            touch.source
            for nest in self.schedule.nests
            if nest.ahead
            for number in nest.stages
            for touch in self.stages[number].touches
            if touch.constant and self._is_used_once(nest, self.stages[number], touch)
        )

    def _is_used_once(self, nest: Nest, work: StageWork, touch: Touch) -> bool:
        """Returns True if only one block of rows of a tile uses the elements of `touch`."""
        blocks = dict(nest.blocks)
        return all(
            min(trips(v), self.tile.get(v, trips(v))) <= blocks.get(v.name, 1)
            for v in work.stage.iters
            if v not in touch.loops
        )

    def _nests_of_thread(self, threads: int) -> list[NestLoops]:
        """Returns the loops of each nest as one of `threads` threads runs them."""
        grid_loops = [
            LoopOver(n, {v: step, **self._following(v)})
            for (v, step), n in zip_equal(self.tile.items(), shares_of(self.counts, threads))
        ]
        elements = {
            v: min(trips(v), loop.trips * step)
            for loop in grid_loops
            for v, step in loop.steps.items()
        }
        return [self._nest_loops(nest, grid_loops, elements) for nest in self.schedule.nests]

    def _following(self, loop: Var) -> dict[Var, int]:
        """Maps the row loop of each strip that follows `loop` to the strip's rows in a tile, and a
        streaming loop whose terms move with `loop` to the elements that a tile computes."""
        followers = (s.strip.rows for s in self.group.stages if s.strip and s.strip.loop is loop)
        rows_of = {rows: self.strips[rows][0] for rows in followers if rows in self.strips}
        return rows_of | (self.needed if moves_with(self.group, loop) else {})

    def _nest_loops(
        self, nest: Nest, grid_loops: list[LoopOver], elements: Mapping[Var, int]
    ) -> NestLoops:
        blocks, k_blocks = dict(nest.blocks), dict(nest.k_blocks)
        stages = [self.stages[n] for n in nest.stages]
        named = {v.name: v for work in stages for v in work.stage.loops}
        terms = {v: terms_along(work.stage, v) for work in stages for v in work.stage.reduce}
        sizes = {v: terms.get(v, trips(v)) for v in named.values()}
        inside = {v: min(size, self.tile.get(v, size)) for v, size in sizes.items()}
        inside |= {v: n for v, (n, _) in self.strips.items() if v in inside}
        inside |= {v: n for v, n in self.needed.items() if v in inside}
        last_loops = [n for n in named if n not in nest.order or n in k_blocks]
        last_loops.sort(key=lambda n: named[n] in terms)
        loops = [*grid_loops]
        for name in (*nest.order, *last_loops):
            var = named[name]
            block = k_blocks.pop(name) if name in k_blocks else blocks.get(name, 1)
            step = max(1, min(block, inside[var]))  # an empty loop has steps of one element
            loops.append(LoopOver(ceil(inside[var] / step), {var: step}))
            inside[var] = min(step, inside[var])
        touches = tuple(
            t.renamed(loops_of(self.group, nest)) if n in nest.along else t
            for n in nest.all_stages
            for t in self._touches(nest, self.stages[n])
        )
        outer = sizes | dict(elements)
        scratch = frozenset(t.source for t in touches if self._in_scratch(t.source))
        return nest_loops(loops, len(grid_loops), touches, outer, scratch, ahead=bool(nest.ahead))

    def _in_scratch(self, source: int | StageRef) -> bool:
        """Returns True if `source` is in scratch, where all tiles of a thread store it in turn."""
        return isinstance(source, StageRef) or not is_global(self.group, source)

    def _reuse(self, border: CacheTraffic) -> tuple[float, float]:
        """Returns (bytes, reuse) of the constant that reads the most bytes from memory. Each of
        these bytes is loaded `reuse` times. Without constants from memory, `bytes` is 0."""
        largest, reuse = 0.0, 1.0
        for work in self.stages:
            for touch in work.touches:
                size = border.by_source.get((touch.source, touch.store), 0.0)
                if touch.constant and size > largest:
                    largest = size
                    reuse = points(work.stage.loops) * touch.size / size
        return largest, max(1.0, reuse / self._rows_of_block())

    def _rows_of_block(self) -> int:
        """Returns how many rows are multiplied after one load of the vector operand."""
        largest = 1
        for nest in self.schedule.nests:
            iters = {v.name for n in nest.stages for v in self.stages[n].stage.iters}
            rows = (size for name, size in nest.blocks if name in iters and name != nest.vector)
            largest = max(largest, prod(rows))
        return largest
