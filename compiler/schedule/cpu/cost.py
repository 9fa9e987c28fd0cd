"""Price: how long a tile group takes under a schedule, without building its IR.

A kernel takes as long as the busiest of its resources: vector arithmetic, load and store ports, and
the traffic across the borders of the first, second and third cache and of memory; of what comes
from the third cache and from memory, the part that the machine does not hide adds to the
arithmetic.  Threads share the units; the one with most of them ends last.  A cold panel that nobody
fetches ahead keeps its first user waiting, so its time and the rest of the work add up.

    Pricer.price(group, schedule)   a group under a schedule
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product as combinations
from itertools import takewhile
from math import ceil, exp, log2, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Var
from tcc.ir.op import Array
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.record import record
from tcc.schedule.cpu.along import loops_along, nest_along
from tcc.schedule.cpu.cache_traffic import (
    CacheTraffic,
    LoopOver,
    NestLoops,
    computed,
    moved,
    nest_loops,
)
from tcc.schedule.cpu.grid import cuts_of, shares_of, uneven
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.cpu.schedule import Nest, Schedule, even
from tcc.schedule.cpu.work import StageWork, group_work, is_global
from tcc.schedule.footprint import LINE, Touch
from tcc.schedule.masked_terms import covered
from tcc.schedule.nest import (
    FEW_APART,
    contraction_factors,
    depends,
    neighbours,
    of_pairs,
    points,
    trips,
)
from tcc.schedule.zero_terms import terms_along, terms_share

# The part of a loop of sums that it takes to enter its innermost loop once more.
_ENTRY = 0.147
# Steps of sums up to which the next start before these end.
_AHEAD = 32
# Stores that one lane's takes the time of where it has a line of its own.
_LANE = 2
# Grids of so few units are dealt out one by one; of more, their sizes matter little.
_FEW = 256
# Of the third cache so small a part keeps results for the next kernel (two of a Zen 5's cores).
_HANDED = 4
_PIECES = 16  # of a thread's range: a call takes half of what is left (runtime/src/threads.c)


@record
class Price:
    """`seconds` a launch takes, and how long each resource alone would: `compute` (arithmetic),
    `ports` (loads and stores), `l2`, `l3` and `dram` (what comes from there).

    `imbalance` is the busiest thread's share of the units over an even share, contained in the
    seconds of arithmetic and ports.
    """

    seconds: float
    compute: float
    ports: float
    l2: float
    l3: float
    dram: float
    imbalance: float


class Pricer:
    """Prices groups for one machine, and remembers what it counted in them.

    `constants` are the bytes of all the model's weights (None: they come from memory at every run):
    what a cache does not keep of them comes from behind it.  Operands that are computed lie in the
    caches, as much as these keep of all that a group touches.  With `pairs` an instruction
    multiplies two bf16 in the time of one f32.
    """

    def __init__(
        self, machine: Machine, constants: int | None = None, *, pairs: bool = False
    ) -> None:
        # What the second and third cache lose of constants between runs.  Equal keys: equal prices.
        lost = tuple(cache.lost(constants) for cache in (machine.l2, machine.l3))
        self.machine, self.key = machine, (machine, lost, pairs)
        self.rates = machine.rates(constants)
        # Pricers of one machine may share it.
        self.counted: dict[TileGroup, tuple[StageWork, ...]] = {}

    def price(
        self, group: TileGroup, schedule: Schedule, *, alone: bool = False, live: int = 0
    ) -> Price:
        """The price of `group`, on one core where it is `alone`; symbolic sizes count as typical
        ones.  `live`: bytes that a run goes through in turns, more than the third cache keeps."""
        if group not in self.counted:
            self.counted[group] = group_work(group, self.machine)
        machine = replace(self.machine, cores=1) if alone else self.machine
        return _Pricing(machine, *self.key[1:], group, schedule, self.counted[group], live).price()


@dataclass(slots=True)
class _Core:
    """Cycles of all units on one core: of each resource, and of the slower one block by block."""

    compute: float = 0.0
    ports: float = 0.0
    either: float = 0.0


class _Pricing:
    """One price being made."""

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
        self.unit = {v: schedule.unit(v.name) for v in self.parallel}
        self.counts = [ceil(trips(v) / n) for v, n in self.unit.items()]
        self.units = prod(self.counts)
        self.threads = min(machine.cores, max(1, self.units))
        self.stream_loop = None if group.stream is None else group.stream.loop
        self.covered = self._covered()
        self.strips = self._strips()
        self.shared = self._shared()
        self.exchanged = self._exchanged()
        # The part of the vectors of each source that lie in two lines, of blocks priced so far.
        self.across: dict[int | StageRef, float] = {}
        # What memory takes longer, as a part, for a source whose blocks lie apart.
        self.gaps: dict[int | StageRef, float] = {}

    def _covered(self) -> Array | None:
        """The part of the streaming loop that each unit goes along; None where all go along it
        all."""
        if not self.schedule.skips:
            return None
        return covered(self.group, tuple(self.unit.items()), self.schedule.stream_block)

    def _strips(self) -> dict[Var, tuple[int, int]]:
        """The rows that a unit makes of each loop that follows a common one, and all units: those
        at a border belong to both neighbours, and none lies outside."""
        found = {}
        for strip in (s.strip for s in self.group.stages):
            if strip is not None and strip.rows is not strip.loop:
                unit = max(1, min(trips(strip.loop), self.schedule.unit(strip.loop.name)))
                whole = trips(strip.rows)
                rows, units = min(whole, strip.count(unit)), ceil(trips(strip.loop) / unit)
                twice = max(0, strip.count(1) - strip.scale)
                found[strip.rows] = rows, min(rows * units, whole + (units - 1) * twice)
        return found

    def _shared(self) -> frozenset[int]:
        """The first stages, as far as they are the same in every unit: each call makes them."""
        if self.group.stream is not None:
            return frozenset()
        cut = {v for v, n in zip(self.parallel, self.counts, strict=True) if n > 1}
        nests = takewhile(
            lambda nest: not any(cut & follows(self.group.stages[n]) for n in nest.stages),
            self.schedule.nests,
        )
        return frozenset(number for nest in nests for number in nest.stages)

    def _again(self, number: int) -> int:
        """How often a stage is made: by each call, or by all units along loops it does not have."""
        if number in self.shared:
            pieces = min(_PIECES, self.units / self.threads)
            return self.threads * (1 + ceil(log2(pieces))) if self.threads > 1 else 1
        own = follows(self.group.stages[number])
        return prod(n for v, n in zip(self.parallel, self.counts, strict=True) if v not in own)

    def price(self) -> Price:
        machine = self.machine
        core = self._core()
        imbalance = self._imbalance()
        second = imbalance / (self.threads * machine.hertz)
        l2, l3, dram, alone, cold, reuse = self._traffic()
        # Too few lines can be under way to hide all that is far behind arithmetic.
        busy = _together(core.either * second, l2, machine.rivals)
        busy = max(busy + machine.l3_exposed * l3, l3)
        waits = busy + machine.memory_exposed * alone
        if not any(n.ahead for n in self.schedule.nests):
            busy = _first_pass(busy, cold, reuse)
        seconds = max(busy, waits, dram)
        seconds += machine.fork if self.threads > 1 else machine.launch
        return Price(seconds, core.compute * second, core.ports * second, l2, l3, dram, imbalance)

    def _imbalance(self) -> float:
        """The busiest thread's share over an even one: threads take units as they come free."""
        if self.threads == 1:
            return 1.0
        if self.units > _FEW:
            return ceil(self.units / self.threads) * self.threads / self.units
        parts = (even(trips(v), n, self._whole_units(v)) for v, n in self.unit.items())
        shares = None if self.covered is None else tuple(self.covered.reshape(-1).tolist())
        return uneven(tuple(parts), shares, self.threads)

    def _whole_units(self, var: Var) -> bool:
        """Returns True for a loop under vectors or of open size: its last unit alone may be cut."""
        return known_extent(var) is None or any(n.vector == var.name for n in self.schedule.nests)

    # ---- arithmetic and ports -----------------------------------------------------------------

    def _core(self) -> _Core:
        core = _Core()
        for nest in self.schedule.nests:
            for number in nest.along:
                own = nest_along(nest, self._loops_along(nest))
                self._stage(core, own, self.stages[number], self._again(number))
            for number in nest.stages:
                self._stage(core, nest, self.stages[number], self._again(number))
        return core

    def _loops_along(self, nest: Nest) -> Mapping[Var, Var]:
        """The loops of a nest's reduction by those of the stages along it."""
        return loops_along(self.group, nest.along, self.group.stages[nest.stages[0]]) or {}

    def _stage(self, core: _Core, nest: Nest, work: StageWork, repeats: float) -> None:
        """Adds the cycles of a stage that is made `repeats` times."""
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
        for combo in combinations(*sizes):
            spans = {v: size for v, (size, _) in zip(blocked, combo, strict=True)}
            count = repeats * prod(n for _, n in combo)
            compute, ports = self._block(nest, work, touches, spans)
            core.compute += count * compute
            core.ports += count * ports
            core.either += count * _together(compute, ports, self.machine.rivals)

    def _touches(self, nest: Nest, work: StageWork) -> list[Touch]:
        """What a stage loads and stores: blocks of stages of the same nest stay in registers."""
        return [
            t
            for t in work.touches
            if not (isinstance(t.source, StageRef) and t.source.stage in nest.all_stages)
            or (t.store and t.source in self.exchanged)
        ]

    def _exchanged(self) -> frozenset[StageRef]:
        """Results of one nest that another reads: they wait in the unit's scratch."""
        return frozenset(
            touch.source
            for nest in self.schedule.nests
            for number in nest.all_stages
            for touch in self.stages[number].touches
            if isinstance(touch.source, StageRef)
            and not touch.store
            and touch.source.stage not in nest.all_stages
        )

    def _cuts(self, var: Var, block: int, whole: bool) -> tuple[tuple[int, int], ...]:
        """(size, count) of the blocks along a loop, over all units of the grid along it."""
        total = trips(var)
        if var in self.strips:  # row by row
            return ((1, self.strips[var][1]),)
        unit = self.unit.get(var, total)
        return cuts_of(total, unit, block, self._whole_units(var), whole)

    def _block(
        self, nest: Nest, work: StageWork, touches: list[Touch], spans: Mapping[Var, int]
    ) -> tuple[float, float]:
        """Cycles of arithmetic, and of loads and stores, of one block of a stage."""
        machine, stage = self.machine, work.stage
        vector = _along(nest, stage, spans)
        rows = prod(size for v, size in spans.items() if v is not vector)
        lanes = 1 if vector is None else work.lanes
        wide = 1 if vector is None else ceil(spans.get(vector, 1) / lanes)
        steps = prod(ceil(trips(v) / (lanes if v is vector else 1)) for v in stage.reduce)
        steps = ceil(steps * terms_share(stage, nest.blocks) / self._at_once(stage, vector))
        sums, k_blocks = rows * wide, self._runs(nest, stage.reduce)
        loads = stores = 0.0
        product = contraction_factors(stage) is not None
        covered = prod(self.unit.get(v, trips(v)) for v in spans if v is not vector)
        if nest.packed and product:  # made once for the rows of a unit
            work = replace(work, ops=1 + (work.ops - 1) / covered, heavy=work.heavy / covered)
            stores = wide * steps * rows / covered
            loads = 2 * stores  # of two lines each
        hidden = bool(nest.along) and bool(stage.reduce)
        chains = ceil(nest.block(vector.name) / lanes) if vector in stage.reduce else 1
        compute = self._arithmetic(work, vector, steps, sums, k_blocks, chains, hidden=hidden)
        compute += stores / machine.stores  # before the sums, not beside them
        for touch in touches:
            rows_of = prod(s for v, s in spans.items() if v is not vector and v in touch.loops)
            sides = (n for v, n in spans.items() if v is not vector and touch.step(v) == 1)
            near = max(sides, default=1)
            apart, packed = _apart(stage, touch), nest.packed and not touch.store
            each = self._instructions(touch, vector, wide, lanes, near, apart, packed)
            count = touch.times * rows_of * each
            if touch.store:
                stores += count
                if near > 1 and self._step(touch, vector) not in (0, 1):  # exchanged in registers
                    compute += touch.times * rows_of * wide * log2(min(near, lanes))
                continue
            count *= steps if any(v in touch.loops for v in stage.reduce) else 1
            if self._step(touch, vector) is None:
                compute += count  # lanes are moved by units of arithmetic
            else:
                loads += count
            if touch.step(vector) != 1:
                continue
            side = wide * lanes
            if not product and (gap := touch.gap(stage.reduce, side)):
                self.gaps[touch.source] = gap
            # Not beside other loops: BERT's attention takes as long with either order of v.
            if product and not (packed or self.exchanged):
                lost = touch.crowded(stage.reduce, side * touch.size, machine.l1)
                compute += count * (1 - rows / covered) * lost * LINE / machine.l2.read
        waits = k_blocks * sums
        return compute, max((loads + waits) / machine.loads, (stores + waits) / machine.stores)

    def _at_once(self, stage: GroupStage, vector: Var | None) -> int:
        """Neighbours along a sum that one instruction multiplies: bf16 where one factor alone
        varies along the lanes."""
        factors = contraction_factors(stage)
        if factors is None or not of_pairs(stage):
            return neighbours(stage)
        lanes = [vector in depends(stage, f) for f in (factors.a, factors.b)]
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
        """Cycles of arithmetic of a block of `sums` vectors, each of `chains` that are independent,
        and `steps` of a reduction; `hidden`: sums wait behind the arithmetic of what is made along
        them."""
        machine, stage = self.machine, work.stage
        compute, heavy = sums * work.ops / machine.fmas, sums * work.heavy
        if not stage.reduce:
            return compute + heavy
        entered = (points(stage.reduce[:-1]) - 1) * _ENTRY * machine.loop
        folds = sums * machine.fold if vector in stage.reduce else 0.0
        few = steps * sums <= _AHEAD
        if hidden or (few and vector not in stage.iters and k_blocks == 0):
            return steps * (compute + heavy) + folds + entered
        # Each sum waits for its last value, unless the next ones start meanwhile.
        wait = 0.0 if few else machine.fma_latency / chains
        compute = steps * (max(compute, wait) + heavy) + entered
        # Where `loop` is measured without folds, these end the loop.
        end = max(machine.loop, folds)
        return compute + max(1, k_blocks) * end + k_blocks * sums * machine.wait

    def _step(self, touch: Touch, vector: Var | None) -> int | None:
        """Elements between lanes: scratch has those along a loop that units cut side by side."""
        step = touch.step(vector)
        return 1 if step and vector in self.group.cut and self._in_scratch(touch.source) else step

    def _instructions(
        self,
        touch: Touch,
        vector: Var | None,
        wide: int,
        lanes: int,
        near: int,
        apart: int,
        packed: bool,
    ) -> float:
        """Loads or stores for one row of a block, in issue slots; so many as `near` rows lie side
        by side, and so many elements of a word as `apart` between lanes; no vector that is `packed`
        lies in two lines."""
        step = self._step(touch, vector)
        if step == 0 or lanes == 1:
            return 1.0
        if step != touch.step(vector):
            return wide
        if step in (1, apart):
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
        if near == 1:
            return wide * lanes * _LANE
        # Rows are exchanged with lanes: one after the other where nothing lies between them.
        return wide if step == near else wide * lanes * ceil(near / lanes) / near

    def _runs(self, nest: Nest, reduce: tuple[Var, ...]) -> int:
        """How often the sums of a block go to scratch and come back."""
        k_blocks = dict(nest.k_blocks)
        # Blocks of a streaming loop compete in size where a mask leaves some out.
        if self.covered is not None and (loop := self.stream_loop) in reduce:
            k_blocks[loop.name] = self.schedule.stream_block
        if not k_blocks:
            return 0
        return prod(ceil(trips(v) / k_blocks[v.name]) for v in reduce if v.name in k_blocks)

    # ---- traffic ------------------------------------------------------------------------------

    def _traffic(self) -> tuple[float, ...]:
        """Seconds of what comes from the second and third cache and from memory, and of a core's
        part of the latter for it alone; those of the largest constant from memory, and how often
        each of its bytes is loaded."""
        machine, hertz = self.machine, self.machine.hertz
        all_, own = self._walks(1), self._walks(self.threads)
        near = computed(all_) / self.threads
        constants = {n for n, buffer in enumerate(self.group.buffers) if buffer.constant}
        first = moved(own, machine.l1)
        second = moved(own, machine.l2.size)
        third = moved(all_, machine.l3.size)
        for source, part in self.across.items():
            first.by_source[source, False] *= 1 + part * (machine.crossing - 1)
        for border, (source, part) in combinations((second, third), self.gaps.items()):
            border.by_source[source, False] *= 1 + part
        l2 = first.seconds(machine.l2.read * hertz, machine.l2.write * hertz)
        # A line that was used survives the next so many by chance.
        lost = 1 - exp(-near / machine.l2.size)
        second.lose(lost, lost, self.lost[0], constants)
        l3 = second.seconds(machine.l3.read * hertz, machine.l3.write * hertz)
        # The last cache keeps what fits of a stream that is used again, and passes on the rest.
        lost = 1 - min(1, machine.l3.size / max(1, near * self.threads))
        handed = self.gone * (1 - exp(-_HANDED * near * self.threads / machine.l3.size))
        third.lose(max(lost, handed), max(lost, self.gone), self.lost[1], constants)
        cold, reuse = self._reuse(third)
        together = self.threads > 1
        dram = self._from_memory(third, together=together)
        alone = self._from_memory(third, together=False) / self.threads
        return l2, l3, dram, alone, cold / machine.memory.reading(together=together), reuse

    def _from_memory(self, border: CacheTraffic, *, together: bool) -> float:
        """Seconds: panels that are fetched ahead come at another pace than others."""
        memory = self.machine.memory
        ahead = self._fetched_ahead()
        stored = border.total(store=True)
        seconds = stored / (memory.write_all if together else memory.write)
        seconds += self.gone * stored / memory.reading(together=together)  # its lines, first
        for (source, store), bytes_ in border.by_source.items():
            if not store:
                seconds += bytes_ / memory.reading(together=together, ahead=source in ahead)
        return seconds

    def _fetched_ahead(self) -> frozenset[int | StageRef]:
        """Constants that a unit asks for without a break: it uses them with one block of rows.

        Where more rows use a panel the stream waits for them, and is no faster than one in order.
        """
        return frozenset(
            touch.source
            for nest in self.schedule.nests
            if nest.ahead
            for number in nest.stages
            for touch in self.stages[number].touches
            if touch.constant and self._once(nest, self.stages[number], touch)
        )

    def _once(self, nest: Nest, work: StageWork, touch: Touch) -> bool:
        """Whether a unit has one block of rows for what is touched."""
        blocks = dict(nest.blocks)
        return all(
            min(trips(v), self.unit.get(v, trips(v))) <= blocks.get(v.name, 1)
            for v in work.stage.iters
            if v not in touch.loops
        )

    def _walks(self, threads: int) -> list[NestLoops]:
        """Each nest's loops as one of `threads` threads walks them."""
        around = [
            LoopOver(n, {v: step, **self._following(v)})
            for (v, step), n in zip(self.unit.items(), shares_of(self.counts, threads), strict=True)
        ]
        whole = {
            v: min(trips(v), loop.trips * step) for loop in around for v, step in loop.steps.items()
        }
        return [self._nest_loops(nest, around, whole) for nest in self.schedule.nests]

    def _following(self, loop: Var) -> dict[Var, int]:
        """The loops over the rows of strips along a common loop, and the rows of a unit."""
        followers = (s.strip.rows for s in self.group.stages if s.strip and s.strip.loop is loop)
        return {rows: self.strips[rows][0] for rows in followers if rows in self.strips}

    def _nest_loops(
        self, nest: Nest, around: list[LoopOver], whole: Mapping[Var, int]
    ) -> NestLoops:
        blocks, k_blocks = dict(nest.blocks), dict(nest.k_blocks)
        stages = [self.stages[n] for n in nest.stages]
        named = {v.name: v for work in stages for v in work.stage.loops}
        terms = {v: terms_along(work.stage, v) for work in stages for v in work.stage.reduce}
        sizes = {v: terms.get(v, trips(v)) for v in named.values()}
        inside = {v: min(size, self.unit.get(v, size)) for v, size in sizes.items()}
        inside |= {v: n for v, (n, _) in self.strips.items() if v in inside}
        if self.covered is not None and (loop := self.stream_loop) in inside:
            inside[loop] = ceil(inside[loop] * self.covered.mean())
        rest = [n for n in named if n not in nest.order or n in k_blocks]
        rest.sort(key=lambda n: named[n] in terms)
        loops = [*around]
        for name in (*nest.order, *rest):
            var = named[name]
            block = k_blocks.pop(name) if name in k_blocks else blocks.get(name, 1)
            step = max(1, min(block, inside[var]))  # an empty loop has no trips, but a step
            loops.append(LoopOver(ceil(inside[var] / step), {var: step}))
            inside[var] = min(step, inside[var])
        touches = (
            *(
                t.renamed(self._loops_along(nest))
                for n in nest.along
                for t in self._touches(nest, self.stages[n])
            ),
            *(t for work in stages for t in self._touches(nest, work)),
        )
        outer = sizes | dict(whole)
        scratch = frozenset(t.source for t in touches if self._in_scratch(t.source))
        return nest_loops(loops, len(around), touches, outer, scratch, ahead=bool(nest.ahead))

    def _in_scratch(self, source: int | StageRef) -> bool:
        """Whether units of a thread have it at the same place, one after the other."""
        return isinstance(source, StageRef) or not is_global(self.group, source)

    def _reuse(self, border: CacheTraffic) -> tuple[float, float]:
        """Bytes from memory of the largest cold constant, and loads of it over these bytes."""
        most, reuse = 0.0, 1.0
        for work in self.stages:
            for touch in work.touches:
                size = border.by_source.get((touch.source, touch.store), 0.0)
                if touch.constant and size > most:
                    most = size
                    reuse = points(work.stage.loops) * touch.size / size
        return most, max(1.0, reuse / self._rows_of_block())

    def _rows_of_block(self) -> int:
        """Rows that one load of the vector operand serves."""
        most = 1
        for nest in self.schedule.nests:
            iters = {v.name for n in nest.stages for v in self.stages[n].stage.iters}
            rows = (size for name, size in nest.blocks if name in iters and name != nest.vector)
            most = max(most, prod(rows))
        return most


def follows(stage: GroupStage) -> set[Var]:
    """The loops that say what of a stage a unit makes."""
    return {*stage.iters, *(() if stage.strip is None else (stage.strip.loop,))}


def _along(nest: Nest, stage: GroupStage, spans: Mapping[Var, int]) -> Var | None:
    """The loop along a stage's vectors: the nest's, or the last of a block without that one."""
    vector = next((v for v in stage.loops if v.name == nest.vector), None)
    if vector is None and not stage.reduce:
        return next((v for v in reversed(stage.iters) if spans.get(v, 1) > 1), None)
    return vector


def _first_pass(busy: float, cold: float, reuse: float) -> float:
    """The time of a kernel whose constant nobody fetches ahead: the first of `reuse` passes over it
    goes at memory's pace.  Operands are walked in order, and the cache fetches those itself."""
    return max(cold, busy / reuse) + busy * (1 - 1 / reuse)


def _apart(stage: GroupStage, touch: Touch) -> int:
    """Elements between the lanes of a product's constant operand, which lies in words."""
    if contraction_factors(stage) is None or not touch.constant:
        return 1
    return max(neighbours(stage), 2 if touch.size == 2 else 1)


def _together(a: float, b: float, rivals: float) -> float:
    """The time of two resources that are busy at once."""
    most = max(a, b)
    return most and most * (1 + (min(a, b) / most) ** rivals) ** (1 / rivals)
