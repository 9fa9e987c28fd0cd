"""Blocks, K-blocks and rows of a contraction: how its sums stay in registers and its operands near.

A core multiplies rows x vectors sums in registers.  The vector operand comes in panels as wide as
the block; a K-block of a panel is used for all rows of a unit before the next, so that it is read
from far away once a unit, and prefetched while its predecessor is used.  Sums wait in the unit's
scratch from K-block to K-block (Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf, prod

from tcc.ir.expr import extent, known_extent
from tcc.ir.expr.scalar import Read
from tcc.ir.index import Var, Vars, as_int, const, divisor_of, free_vars, substitute
from tcc.ir.tile.group import GroupBuffer, GroupStage, TileGroup
from tcc.record import record
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.packing import made, packs
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.cpu.vectors import lanes_of, vector_block
from tcc.schedule.nest import contraction_factors, depends, neighbours, points, stride, trips

# Steps of a reduction in one K-block: sums that wait cost more than a panel
# that comes from the second-level cache again for every block of rows.
WHOLE = 320
# The same where blocks leave that cache the time, and the steps of a K-block of longer sums.
# Measured with blocks of five and six rows: 3 to 5 % less than K-blocks that fit the first-level
# cache, for sums wait less often, and those of up to DEEP steps never; 512 steps gain no more.
DEEP = 960
LONG = 384
# Bytes a cycle that a panel may take from the second-level cache beside all else that comes from
# there.  Measured: blocks of 5 rows x 4 vectors gain by longer K-blocks, of 14 / 3 rows they lose.
FED = 26.0
# Rows of a unit from which on long K-blocks pay: with few of them the next K-block comes too late.
# Measured with sums of 1024: 128 rows gain 3 %, 64 lose as much.
MANY = 96
# K-blocks of a core from which on they pay: nobody asks for the first one ahead.  Measured with
# sums of 768: where a core has six panels it loses up to 5 %.
FOLLOWED = 12
# A shorter K-block is not worth its loop.
MIN_RUN = 64
# Bytes of a K-block where one block covers all rows of a unit, so that nothing waits and nothing is
# used twice: sixteen pages, each of which memory is asked for at once (tile/cpu/prefetch.py).
# Measured: 8, 16, 24 pages read 31.5, 33.3, 32.9 GB/s on two cores.
ONE_PASS = 1 << 16
# Rows of a unit: enough to use a panel some forty times.
ROWS = 256
# Rows below which a unit's use of a panel is short of what the panel takes to come.
ENOUGH = 32
# Steps of a reduction in one block: enough to hide the loop, few enough for the registers.
STEPS = 2
# Columns of a window that slides over each lane for itself which are multiplied at once: what
# neighbouring results share is loaded once.
WINDOW = 4
# Columns of a wider window of that kind which are multiplied at once, by one vector of lanes and
# many results: each column is loaded once for all results that it is part of, and all fit the
# registers.  With more lanes and fewer results, loads take as long as the products or longer.
WIDE_WINDOW = 8
# With so many units for each core, an odd one matters little.
FEW = 8
# A narrower panel reads the other operand more often: it has to save some of the cycles.
WORTH = 0.98


@record
class ContractionLoops:
    """A contraction, and the loops its factors vary with: of the one along the vector, and the
    other."""

    stage: GroupStage
    vector: Var
    this: frozenset[Var]
    other: frozenset[Var]

    @property
    def both(self) -> bool:
        """Whether both factors run along the vector loop."""
        return self.vector in self.this and self.vector in self.other

    @property
    def rows(self) -> Vars:
        """Loops of the result along which only the other factor varies."""
        own = self.other - self.this - {self.vector}
        return tuple(v for v in self.stage.iters if v in own)


def contraction_loops(stage: GroupStage, vector: Var | None) -> ContractionLoops | None:
    """The sides of a sum of products; None for other stages and where nothing is smooth."""
    factors = contraction_factors(stage)
    if factors is None or vector is None:
        return None
    a, b = depends(stage, factors.a), depends(stage, factors.b)
    if vector in a and vector in b:  # the one with fewer loops is read again for every row
        a, b = sorted((a, b), key=len)
    return ContractionLoops(stage, vector, *((a, b) if vector in a else (b, a)))


def blocks_of(contraction: ContractionLoops, registers: CoreModel) -> dict[Var, int]:
    """Register blocks along the stage's loops."""
    stage = contraction.stage
    lanes = lanes_of(stage, registers)
    if contraction.vector in stage.reduce:
        return _dot_blocks(contraction, registers, lanes)
    if contraction.both and (wide := _wide_blocks(contraction, registers, lanes)):
        return wide
    block = panel_of(contraction, registers)
    blocks = {contraction.vector: block}
    rows = contraction.rows
    if rows:
        most = _most_rows(-(-block // lanes), registers)
        blocks[_blocked(rows, most)] = min(most, 4) if contraction.both else most
    inner = [v for v in stage.reduce if trips(v) > 1]
    if inner and not contraction.both and known_extent(inner[-1]) is not None:
        blocks[inner[-1]] = max(STEPS, neighbours(stage))
    if inner and contraction.both and (known_extent(inner[-1]) or inf) <= WINDOW:
        blocks[inner[-1]] = trips(inner[-1])
    return blocks


def with_phases(
    contraction: ContractionLoops, blocks: Mapping[Var, int], phases: Var | None
) -> dict[Var, int]:
    """`blocks` with all of the loop `phases`, whose results lie between the lanes of the others,
    and as many rows less: vectors of all phases are exchanged in registers and stored whole."""
    count = 1 if phases is None else trips(phases)
    row = next((v for v in contraction.rows if v in blocks), None)
    if phases is None or phases not in contraction.rows or row is None or row is phases:
        return dict(blocks)
    return {**blocks, row: max(1, blocks[row] // count), phases: count}


def _wide_blocks(contraction: ContractionLoops, registers: CoreModel, lanes: int) -> dict[Var, int]:
    """Blocks of a window too wide for many lanes at once; empty for others."""
    stage = contraction.stage
    if not stage.reduce:
        return {}
    columns = stage.reduce[-1]
    size, rows = known_extent(columns), contraction.rows
    if size is None or not WINDOW < size <= WIDE_WINDOW or not rows:
        return {}
    results = 16 if registers.count >= 32 else 6
    row = _blocked(rows, results)
    if not any(stride(a, row) == stride(a, columns) != 0 for a in stage.accesses.values()):
        return {}  # neighbours are further apart than columns: they share few
    block = min(lanes, vector_block(contraction.vector, stage, registers))
    return {contraction.vector: block, row: results, columns: size}


@lru_cache(maxsize=1024)  # every part of a schedule asks for it
def panel_of(contraction: ContractionLoops, registers: CoreModel) -> int:
    """Columns of a panel, at most four vectors: the widest of those that take about the fewest
    cycles, with what is left over at the ends and the busiest core's share of the panels."""
    stage = contraction.stage
    most = vector_block(contraction.vector, stage, registers)
    size = known_extent(contraction.vector)
    lanes = lanes_of(stage, registers)
    rows = contraction.rows
    if registers.knobs.panel is not None and size is not None and rows and not contraction.both:
        return max(1, min(size, most, registers.knobs.panel * lanes))
    if size is None or most <= lanes or not rows or contraction.both or not points(stage.iters):
        return most
    repeated = 0 if packs(stage, contraction.vector, rows) else made(stage, contraction.vector)
    longest = trips(_longest(rows))
    best, least = most, inf
    for vectors in range(-(-most // lanes), 0, -1):
        panel = min(size, vectors * lanes)
        cycles = _cycles(size, panel, longest, lanes, repeated, registers)
        cycles *= _imbalance(contraction, panel, points(rows), registers)
        if cycles < least * WORTH:
            best, least = panel, cycles
    return best


def _cycles(size: int, panel: int, rows: int, lanes: int, made: int, registers: CoreModel) -> float:
    """Cycles of a step of the sum over all columns and a loop of rows."""
    total = 0.0
    for width, count in ((panel, size // panel), (size % panel, 1)):
        vectors = -(-width // lanes)
        if not vectors:
            continue
        blocks = -(-rows // _most_rows(vectors, registers))
        less, more = divmod(rows, blocks)
        total += count * more * _step(vectors, less + 1, made, registers)
        total += count * (blocks - more) * _step(vectors, less, made, registers)
    return total


def _step(vectors: int, rows: int, made: int, registers: CoreModel) -> float:
    """Cycles of rows x vectors products: arithmetic, its latency, or the loads of both sides."""
    sums = (rows + made) * vectors / registers.fmas
    return max(sums, registers.latency, (rows + vectors) / registers.loads)


def _imbalance(contraction: ContractionLoops, panel: int, rows: int, registers: CoreModel) -> float:
    """The busiest core's share over an even one, where each takes as many neighbouring units."""
    size = trips(contraction.vector)
    own = contraction.this - {contraction.vector}
    others = points(v for v in contraction.stage.iters if v in own)
    count = -(-size // panel)
    parts = parts_of(count * others, rows, registers, ROWS)
    units, cores = count * others * parts, registers.cores
    if units >= FEW * cores:
        return 1.0
    widths = [min(panel, size - n * panel) for n in range(count) for _ in range(parts)] * others
    ends = [-(-units * n // cores) for n in range(cores + 1)]
    return max(sum(widths[i:j]) for i, j in pairwise(ends)) * cores / sum(widths)


def _dot_blocks(contraction: ContractionLoops, registers: CoreModel, lanes: int) -> dict[Var, int]:
    """Both factors run along the reduction: square blocks of vectors of partial sums."""
    stage = contraction.stage
    square = 4 if registers.count >= 32 else 3
    rows = {}
    for side, other in (
        (contraction.this, contraction.other),
        (contraction.other, contraction.this),
    ):
        free = tuple(v for v in stage.iters if v in side and v not in other)
        if free:
            rows[_longest(free)] = square
    if len(rows) == 2:
        return {**rows, contraction.vector: lanes}
    return {contraction.vector: vector_block(contraction.vector, stage, registers)}


def _longest(variables: Vars) -> Var:
    """The longest loop, the innermost of equals."""
    return max(enumerate(variables), key=lambda pair: (trips(pair[1]), pair[0]))[1]


def _blocked(rows: Vars, most: int) -> Var:
    """The loop of rows that blocks run along: one of symbolic size may have few, and yields to one
    that is known to fill half a block."""
    known = tuple(v for v in rows if 2 * (known_extent(v) or 0) >= most)
    return _longest(known or rows)


def _most_rows(vectors: int, registers: CoreModel) -> int:
    """Rows of accumulators beside `vectors` loaded ones and a broadcast: never a spill."""
    table = {4: 6, 3: 8, 2: 12, 1: 14} if registers.count >= 32 else {2: 6, 1: 10}
    return table[max(1, min(vectors, 4))]


# ---- K-blocks -----------------------------------------------------------------------------------


def k_blocks_of(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    registers: CoreModel,
) -> dict[Var, int]:
    """The K-blocks of the outer reductions, outermost first; empty where one holds all of it.

    Units cut the `common` loops."""
    stage = contraction.stage
    if contraction.vector in stage.reduce or contraction.both or _open_rows(common, contraction):
        return {}
    loops = [v for v in stage.reduce if trips(v) > 1]
    steps, whole = _steps_at_once(common, contraction, blocks, registers)
    if points(loops) <= whole:
        return {}
    inner = 1
    found: dict[Var, int] = {}
    for var in reversed(loops):
        size = trips(var)
        if found:
            found[var] = 1
        elif inner * size > steps * 5 // 4:
            count = -(-size * inner // steps)
            step = blocks.get(var, 1)
            run = ceil(ceil(size / count) / step) * step
            if run < size or as_int(size) is None:
                found[var] = run
        inner *= size
    return dict(reversed(found.items()))


def _steps_at_once(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    registers: CoreModel,
) -> tuple[int, int]:
    """Steps of a run, and of the longest sum that is not cut into runs."""
    steps = registers.knobs.k_block
    if steps is not None:
        return steps, steps * 5 // 4
    panel = blocks.get(contraction.vector, 1) * _element(contraction)
    word = neighbours(contraction.stage)
    if _one_pass(contraction, blocks):
        return max(MIN_RUN, int(ONE_PASS / panel)), WHOLE * word
    followed = _followed(common, contraction, blocks, registers)
    if followed and _fed(contraction, blocks, panel * word, registers):
        return LONG * word, DEEP * word
    # Sums that wait anyway do so for K-blocks that stay in the first-level cache for all rows.
    return max(MIN_RUN, int(registers.l1 * 2 / 3 / panel)), WHOLE * word


def _followed(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    registers: CoreModel,
) -> bool:
    """Whether a core has many rows for a long run, and many such runs: the panels are dealt out to
    the cores where units cut them, else the rows are."""
    stage = contraction.stage
    rows = contraction.rows
    others = [v for v in stage.iters if v not in rows]
    panels = points(v for v in others if v is not contraction.vector)
    panels *= -(-trips(contraction.vector) // blocks.get(contraction.vector, 1))
    steps = points(stage.reduce)
    steps //= neighbours(stage)
    k_blocks = panels * (1 if steps <= DEEP else -(-steps // LONG))
    if any(v in common and trips(v) >= registers.cores for v in others):
        return points(rows) >= MANY and k_blocks // registers.cores >= FOLLOWED
    return points(rows) // registers.cores >= MANY and k_blocks >= FOLLOWED


def _fed(
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    panel: float,
    registers: CoreModel,
) -> bool:
    """Whether blocks of rows do so much with each step of a panel, of `panel` bytes, that it may
    come from the second-level cache each time."""
    rows = contraction.rows
    size, most = max(((trips(v), n) for v, n in blocks.items() if v in rows), default=(1, 1))
    vectors = -(-blocks.get(contraction.vector, 1) // lanes_of(contraction.stage, registers))
    cycles = size / -(-size // most) * vectors / registers.fmas
    return panel <= FED * cycles


def _one_pass(contraction: ContractionLoops, blocks: Mapping[Var, int]) -> bool:
    """Whether one block covers all rows: a panel is used once."""
    rows = contraction.rows
    return all((known_extent(v) or inf) <= blocks.get(v, 1) for v in rows)


def _element(contraction: ContractionLoops) -> float:
    """Bytes of the vector operand for one column and one step of the sum, as they are multiplied
    from memory or scratch."""
    stage = contraction.stage
    if packs(stage, contraction.vector, contraction.rows):
        return stage.body[0].dtype.bytes
    step, found = _moved(contraction)
    if step is None:
        return stage.body[0].dtype.bytes
    inside = stage.reduce[stage.reduce.index(step) + 1 :]
    return sum(node.dtype.bytes for node in found) / points(inside)


def _moved(contraction: ContractionLoops) -> tuple[Var | None, tuple[Read, ...]]:
    """The innermost loop of the sum that moves along the vector operand, and what it reads there.

    A scale that many steps share is not read there; levels of which one element holds several
    steps do not move with these.
    """
    stage = contraction.stage
    for step in reversed([v for v in stage.reduce if trips(v) > 1]):
        moving = {contraction.vector, step}
        found = tuple(n for n in stage.accesses if moving <= depends(stage, n))
        if found:
            return step, found
    return None, ()


def _open_rows(common: Collection[Var], contraction: ContractionLoops) -> bool:
    """Whether a unit's number of rows is not known: sums cannot wait, no part of a panel is due."""
    return any(known_extent(v) is None and v not in common for v in contraction.rows)


# ---- loops --------------------------------------------------------------------------------------


def contraction_nest(
    stages: tuple[int, ...],
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    inside: frozenset[Var],
    registers: CoreModel,
    *,
    far: bool,
    copied: bool = False,
) -> Nest:
    """Panels outside, then K-blocks, then rows; units cut the `common` loops, and cover more than a
    block of those `inside`; `far` tells that the vector operand comes from beyond the second-level
    cache; `copied`: it is multiplied from scratch, if it is only read."""
    stage = contraction.stage
    rows = contraction.rows
    k_blocks = k_blocks_of(common, contraction, blocks, registers) if len(stages) == 1 else {}
    packed = packs(stage, contraction.vector, rows, copied)
    # Of an open vector loop blocks differ in width: rows go around inside each width.
    wide = contraction.vector if known_extent(contraction.vector) is None else None
    panels = [v for v in stage.iters if v not in rows and (packed or v in inside or v is wide)]
    panels.sort(key=lambda v: v is contraction.vector)
    within = [v for v in rows if v in inside]
    order = (*panels, *k_blocks, *within)
    # A packed K-block comes in between what is read and what is multiplied, and hides the wait.
    hides = packed or _open_rows(common, contraction) or not _streams(contraction, blocks)
    hides |= not registers.hinted and _one_pass(contraction, blocks)
    return Nest(
        stages,
        tuple(v.name for v in order),
        tuple((v.name, n) for v, n in blocks.items() if n > 1),
        contraction.vector.name,
        tuple((v.name, n) for v, n in k_blocks.items()),
        ahead=0 if hides or not far else _level(contraction, blocks, k_blocks, registers),
        packed=packed,
    )


def _level(
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    k_blocks: Mapping[Var, int],
    registers: CoreModel,
) -> int:
    """The cache to which a K-block comes while the one before it is used: the second where the
    first does not hold both, and few rows leave it no time to bring lines in twice.  What several
    blocks of rows use comes to the first one anyway, a part at a time."""
    rows = prod(min(blocks.get(v, 1), trips(v)) for v in contraction.rows)
    rate = 4 * registers.lanes * registers.fmas / rows  # bytes a cycle that products take
    steps = points(v for v in contraction.stage.reduce if v not in k_blocks)
    panel = blocks.get(contraction.vector, 1) * _element(contraction)
    size = panel * steps * prod(k_blocks.values())
    far = _one_pass(contraction, blocks) and 2 * size > registers.l1
    return 2 if far and rate > FED else 1


def _streams(contraction: ContractionLoops, blocks: Mapping[Var, int]) -> bool:
    """Whether the vector operand lies in panels as wide as the block, one after the other."""
    stage = contraction.stage
    step, found = _moved(contraction)
    if step is None or len(found) != 1:
        return False
    access, block = stage.accesses[found[0]], blocks[contraction.vector]
    # What one element holds is used in one block.
    inside = stage.reduce[stage.reduce.index(step) + 1 :]
    if any(trips(v) != blocks.get(v, 1) for v in inside):
        return False
    # Which matrix it is may be chosen by data.
    chosen = {v for v, _ in found[0].indirect}
    if any(not chosen.issuperset(free_vars(guard.index)) for guard in access.guards):
        return False
    uneven = [v for v in stage.reduce if v is not step and stride(access, v) is None]
    # A word of steps at a time: neighbours may lie side by side in it.
    count = max(2, neighbours(stage))
    after, first = (substitute(access.offset, {step: const(n)}) for n in (count, 0))
    return not uneven and as_int(after - first) == count * block


def row_units(
    common: Vars,
    contraction: ContractionLoops,
    registers: CoreModel,
    most: int,
    others: Mapping[Var, int],
    blocks: Mapping[Var, int],
    *,
    bound: bool,
) -> dict[Var, int]:
    """Elements of each row loop that a unit covers: about `most` rows in all (with `bound`, no
    more), in parts that give every core the same number of units where they are few; `others` are
    elements of the other loops, where a unit covers several.  An open loop outside enough other
    rows may have a single trip, and a unit covers one; else units of open loops are whole register
    `blocks`."""
    rows = [v for v in contraction.rows if v in common]
    counts = _counts(rows)
    total = prod(counts.values())
    covered = {**others, contraction.vector: panel_of(contraction, registers)}
    units = prod(-(-trips(v) // covered.get(v, 1)) for v in common if v not in rows)
    parts = parts_of(units, total, registers, most)
    left = -(-total // parts)
    found: dict[Var, int] = {}
    for var in reversed(rows):
        size = counts[var]
        found[var] = max(1, min(size, left))
        if known_extent(var) is None:
            even = _even(size, found[var], most)
            found[var] = even if _fair(units * -(-trips(var) // even), registers) else found[var]
            found[var] = min(found[var], _tall(contraction, registers) or found[var])
            found[var] = _in_blocks(found[var], blocks.get(var, 1), most)
        above = -(-left // size) if left >= size else 1
        over = bound and above * prod(found.values()) > most
        left = max(1, left // max(size, found[var])) if over else above
    return found


def _tall(contraction: ContractionLoops, registers: CoreModel) -> int | None:
    """The most open rows of a unit that knobs say."""
    blocks = registers.knobs.tall
    vectors = -(-panel_of(contraction, registers) // lanes_of(contraction.stage, registers))
    return blocks and blocks * _most_rows(vectors, registers)


def _in_blocks(unit: int, block: int, most: int) -> int:
    """About `unit`, at most `most`, in whole blocks where blocks of equal size would have a tenth
    of their rows less: open sizes have such blocks in every unit.

    Measured on Zen 5: a block of four of six rows takes 0.7 of the time of a whole one."""
    above = -(-unit // block) * block
    if unit == 1 or 10 * unit >= 9 * above:
        return unit
    return above if above <= most else max(unit // block * block, min(unit, block))


def _counts(rows: Sequence[Var]) -> dict[Var, int]:
    """The trips of each loop of rows that a unit may count on."""
    counts: dict[Var, int] = {}
    for var in reversed(rows):
        few = prod(counts.values()) < ENOUGH
        certain = divisor_of(extent(var))
        if known_extent(var) is None and certain >= ENOUGH:
            counts[var] = certain  # whole images, of which there may be one
        else:
            counts[var] = trips(var) if few or known_extent(var) is not None else 1
    return counts


def _even(size: int, unit: int, most: int) -> int:
    """About `unit`, such that units divide `size` and each multiple of it, where that is near."""
    above = next(n for n in range(unit, size + 1) if size % n == 0)
    below = next(n for n in range(unit, 0, -1) if size % n == 0)
    return next((n for n in (above, below) if unit <= 2 * n and n <= min(most, 2 * unit)), unit)


def _fair(units: int, registers: CoreModel) -> bool:
    """Whether cores have about as many units each."""
    return units % registers.cores == 0 or units >= FEW * registers.cores


def parts_of(units: int, rows: int, registers: CoreModel, most: int) -> int:
    """Into how many parts of at most `most` rows they are cut, where `units` are there already."""
    parts = -(-rows // most)
    while not _fair(units * parts, registers):
        if rows // (parts + 1) < most // 12:
            break
        parts += 1
    return parts


# ---- the order of units -------------------------------------------------------------------------


def panels_outer(
    group: TileGroup,
    contraction: ContractionLoops,
    units: Mapping[Var, int],
    registers: CoreModel,
) -> bool:
    """Whether walking one panel of the vector operand over all rows moves fewer bytes from beyond
    the second-level cache than walking all panels for each unit of rows."""
    stage = contraction.stage
    size = stage.body[0].dtype.bytes
    this = footprint(group, stage, contraction.this) * size
    other = footprint(group, stage, contraction.other) * size
    panels = -(-trips(contraction.vector) // units.get(contraction.vector, 1))
    parts = prod(-(-trips(v) // units.get(v, 1)) for v in group.common if v not in contraction.this)
    panel = this // panels
    outer = this * (1 if panel <= registers.l2 else parts) + other * (
        1 if other <= registers.l2 else panels
    )
    inner = other + this * (1 if this <= registers.l2 else parts)
    if outer != inner:
        return outer < inner
    # Cores that share rows each read the whole vector operand; those that share panels read the
    # other one, and what they make lies elsewhere than where the next kernel's rows are wanted.
    return this > other + points(stage.iters) * size


def footprint(group: TileGroup, stage: GroupStage, side: frozenset[Var]) -> int:
    """Elements of the storage that a factor varying with the loops `side` reads."""
    sizes = (as_int(b.size) for b in _read(group, stage, side))
    return sum(points(side) if size is None else size for size in sizes)


def is_constant(group: TileGroup, stage: GroupStage, side: frozenset[Var]) -> bool:
    """Whether a factor varying with the loops `side` reads constants only."""
    return all(b.constant for b in _read(group, stage, side))


def _read(group: TileGroup, stage: GroupStage, side: frozenset[Var]) -> list[GroupBuffer]:
    return [
        group.buffers[access.buffer]
        for node, access in stage.accesses.items()
        if depends(stage, node) <= side
    ]
