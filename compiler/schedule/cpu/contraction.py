"""The register blocks, K-blocks and loop order of a contraction.

A contraction is a sum of products, such as y[i, j] = sum(k) a[i, k] * b[k, j] with the vector loop
j. Then b is the vector operand, a the row operand, i the loop of rows, and a step is one value of
k. A register block is rows x vectors of results, whose sums are in registers. A panel is the part
of b with the columns of one register block. A K-block is some consecutive steps.

The vector operand is stored panel by panel. All rows of a tile use a K-block of a panel before the
next K-block. So each tile reads a panel from memory once, and prefetches a K-block while it uses
the K-block before. Between two K-blocks, sums wait in the tile's scratch (Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", 2008).
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf, prod

from tcc.frozen import frozen
from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read
from tcc.ir.index import Var, Vars, as_int, const, free_vars, substitute
from tcc.ir.tile.group import GroupStage
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.packing import packs, unpacking_operations
from tcc.schedule.cpu.schedule import Nest, named
from tcc.schedule.cpu.vectors import lanes_of, vector_block
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import (
    contraction_factors,
    depends,
    is_open,
    neighbours,
    points,
    stride,
    tile_count,
    trips,
)

# A sum of at most this many steps has a single K-block. Up to this length, it takes less time to
# read a panel again from the second-level cache for every block of rows than to store sums.
WHOLE = 320
# If the second-level cache delivers panels fast enough (`_fed`), a sum of at most DEEP steps has a
# single K-block, and a longer sum has K-blocks of LONG steps. Measured with blocks of five and six
# rows: 3 to 5 % less time than with K-blocks that fit the first-level cache, because sums are
# stored less often. K-blocks of 512 steps gain no more.
DEEP = 960
LONG = 384
# Bytes of a panel that the second-level cache can deliver in a cycle, besides its other work.
# Measured: blocks of 5 rows x 4 vectors gain by longer K-blocks; blocks of 14/3 rows, the mean of
# three blocks, lose.
FED = 26.0
# The fewest rows of a tile for which long K-blocks save time. With fewer rows the prefetch of the
# next K-block does not end in time. Measured with sums of 1024 steps: 128 rows take 3 % less time,
# 64 rows 3 % more.
MANY = 96
# The fewest K-blocks of a core for which long K-blocks save time, because a core's first K-block is
# not prefetched. Measured with sums of 768 steps: a core with six panels takes up to 5 % more time.
FOLLOWED = 12
# The fewest steps of a K-block that are worth its loop.
MIN_RUN = 64
# Bytes of a K-block if one register block covers all rows of a tile. Then no sum is stored, and no
# panel is used twice. They are sixteen pages, which are prefetched side by side
# (tile/cpu/prefetch.py). Measured: 8, 16, 24 pages read 31.5, 33.3, 32.9 GB/s on two cores.
ONE_PASS = 1 << 16
# The usual rows of a tile: enough to use each panel some forty times.
ROWS = 256
# Steps of the sum in a register block: enough to hide the loop's overhead, and few enough for the
# registers.
STEPS = 2
# The most columns of a window that a register block multiplies at once, if the window slides over
# each lane by itself. Elements that neighbouring results share are then loaded once.
WINDOW = 4
# The most columns of a window that a register block multiplies at once, if the block has one vector
# of lanes and many results. An element of the operand is loaded once for all results of the block,
# and their accumulators fit the registers. Blocks of more vectors and fewer results take WINDOW:
# their loads take as long as the arithmetic or longer.
WIDE_WINDOW = 8
# With at least this many tiles for each core, it matters little if some cores have one tile more.
FEW = 8
# A narrower panel is chosen only if its cycles are below this fraction of those of a wider panel,
# because with narrower panels the other operand is read more often.
WORTH = 1 - MARGINS["cycles of a panel"].saves


@frozen
class ContractionLoops:
    """A contraction and the loops that its two factors vary with.

    `vector` is the loop along the lanes. `vector_factor` has the loops of the factor that varies
    with `vector`, and `row_factor` the loops of the other factor.
    """

    stage: GroupStage
    vector: Var
    vector_factor: frozenset[Var]
    row_factor: frozenset[Var]

    @property
    def along_both(self) -> bool:
        """Returns True if both factors vary along the vector loop."""
        return self.vector in self.vector_factor and self.vector in self.row_factor

    @property
    def rows(self) -> Vars:
        """Returns the loops of the result that only the row factor varies with."""
        loops = self.row_factor - self.vector_factor - {self.vector}
        return tuple(v for v in self.stage.iters if v in loops)


def contraction_loops(stage: GroupStage, vector: Var | None) -> ContractionLoops | None:
    """Returns the loops of a contraction; None for any other stage, or without a vector loop."""
    factors = contraction_factors(stage)
    if factors is None or vector is None:
        return None
    a, b = factors.loops(stage)
    if vector in a and vector in b:  # the factor with fewer loops becomes the vector factor
        a, b = sorted((a, b), key=len)
    return ContractionLoops(stage, vector, *((a, b) if vector in a else (b, a)))


def blocks_of(contraction: ContractionLoops, core: CoreModel) -> dict[Var, int]:
    """Returns the register blocks along the stage's loops."""
    stage = contraction.stage
    lanes = lanes_of(stage, core)
    if contraction.vector in stage.reduce:
        return _dot_blocks(contraction, core, lanes)
    if contraction.along_both and (wide := _wide_blocks(contraction, core, lanes)):
        return wide
    block = panel_of(contraction, core)
    blocks = {contraction.vector: block}
    rows = contraction.rows
    if rows:
        row_limit = most_rows(-(-block // lanes), core)
        factors = contraction_factors(stage)
        if factors is not None and factors.start is not None:
            row_limit //= 2  # the sums of a group have registers of their own
        blocks[_blocked(rows, row_limit)] = (
            min(row_limit, 4) if contraction.along_both else row_limit
        )
    inner = [v for v in stage.reduce if trips(v) > 1]
    core.because("blocks: sums that fit registers", stage, *rows, *inner[-1:])
    word = neighbours(stage)
    if inner and not contraction.along_both and (word > 1 or known_extent(inner[-1]) is not None):
        blocks[inner[-1]] = max(STEPS, word)
    if inner and contraction.along_both and (known_extent(inner[-1]) or inf) <= WINDOW:
        blocks[inner[-1]] = trips(inner[-1])
    return blocks


def with_phases(
    contraction: ContractionLoops, blocks: Mapping[Var, int], phases: Var | None, core: CoreModel
) -> dict[Var, int]:
    """Returns `blocks` with all n iterations of the loop `phases`, and with 1/n of the rows.

    A transposed convolution with stride s has a result loop over its s phases: results at positions
    with equal remainder modulo s. Results of neighbouring phases are neighbours in memory: for
    stride 2, phases 0 and 1 alternate. A block with all phases interleaves their vectors in
    registers, and stores whole vectors. Returns `blocks` unchanged if `phases` is None, or if no
    other row loop has a block.
    """
    count = 1 if phases is None else trips(phases)
    row = next((v for v in contraction.rows if v in blocks), None)
    if phases is None or phases not in contraction.rows or row is None or row is phases:
        return dict(blocks)
    core.because("blocks: phases side by side", contraction.stage, row, phases)
    return {**blocks, row: max(1, blocks[row] // count), phases: count}


def _wide_blocks(contraction: ContractionLoops, core: CoreModel, lanes: int) -> dict[Var, int]:
    """Returns the register blocks of a window of more than `WINDOW` and at most `WIDE_WINDOW`
    columns.

    A block has one vector of lanes, all columns of the window and several results. The dict is
    empty for any other stage.
    """
    stage = contraction.stage
    if not stage.reduce:
        return {}
    columns = stage.reduce[-1]
    size, rows = known_extent(columns), contraction.rows
    if size is None or not WINDOW < size <= WIDE_WINDOW or not rows:
        return {}
    results = 16 if core.count >= 32 else 6
    row = _blocked(rows, results)
    if not any(stride(a, row) == stride(a, columns) != 0 for a in stage.accesses.values()):
        return {}  # The windows of neighbouring results share few columns, which saves few loads.
    block = min(lanes, vector_block(contraction.vector, stage, core))
    core.because("blocks: a column is loaded once", stage, contraction.vector, row, columns)
    return {contraction.vector: block, row: results, columns: size}


@lru_cache(maxsize=1024)  # each part of a schedule calls this function
def panel_of(contraction: ContractionLoops, core: CoreModel) -> int:
    """Returns the number of columns of a panel, at most four vectors.

    It is the widest panel that takes close to the fewest cycles. The cycles include remainders at
    the ends and the imbalance between cores.
    """
    stage = contraction.stage
    widest = vector_block(contraction.vector, stage, core)
    size = known_extent(contraction.vector)
    lanes = lanes_of(stage, core)
    rows = contraction.rows
    if size is None or not rows or contraction.along_both:
        return widest
    if core.knobs.panel is not None:
        core.because("blocks: knob panel, by price", stage, contraction.vector)
        return max(1, min(size, widest, core.knobs.panel * lanes))
    if widest <= lanes or not points(stage.iters):
        return widest
    unpacking = (
        0
        if packs(stage, contraction.vector, rows)
        else unpacking_operations(stage, contraction.vector)
    )
    core.because("blocks: panel of fewest cycles", stage, contraction.vector)
    longest = trips(_longest(rows))
    best, fewest = widest, inf
    for vectors in range(-(-widest // lanes), 0, -1):
        panel = min(size, vectors * lanes)
        cycles = _cycles(size, panel, longest, lanes, unpacking, core)
        cycles *= _imbalance(contraction, panel, points(rows), core)
        if cycles < fewest * WORTH:
            best, fewest = panel, cycles
    return best


def _cycles(size: int, panel: int, rows: int, lanes: int, unpacking: int, core: CoreModel) -> float:
    """Returns the cycles of one step of the sum, for a matrix of `rows` x `size` results.

    The columns are cut into panels of `panel` columns. `unpacking` operations compute each vector
    of the vector operand.
    """
    cycles = 0.0
    for width, count in ((panel, size // panel), (size % panel, 1)):
        vectors = -(-width // lanes)
        if not vectors:
            continue
        blocks = -(-rows // most_rows(vectors, core))
        fewer, longer = divmod(rows, blocks)
        cycles += count * longer * _step(vectors, fewer + 1, unpacking, core)
        cycles += count * (blocks - longer) * _step(vectors, fewer, unpacking, core)
    return cycles


def _step(vectors: int, rows: int, unpacking: int, core: CoreModel) -> float:
    """Returns the cycles of one step of the sum for a register block of rows x vectors.

    The cycles are the largest of three: the arithmetic, the latency of an addition, and the loads
    of both operands. `unpacking` operations compute each vector of the vector operand.
    """
    sums = (rows + unpacking) * vectors / core.fmas
    return max(sums, core.latency, (rows + vectors) / core.loads)


def _imbalance(contraction: ContractionLoops, panel: int, rows: int, core: CoreModel) -> float:
    """Returns the work of the busiest core, divided by the mean work of all cores.

    Each core takes about the same number of neighbouring tiles.
    """
    size = trips(contraction.vector)
    panel_loops = contraction.vector_factor - {contraction.vector}
    repeats = points(v for v in contraction.stage.iters if v in panel_loops)
    count = -(-size // panel)
    parts = parts_of(count * repeats, rows, core, ROWS)
    tiles, cores = count * repeats * parts, core.cores
    if tiles >= FEW * cores:
        return 1.0
    widths = [min(panel, size - n * panel) for n in range(count) for _ in range(parts)] * repeats
    ends = [-(-tiles * n // cores) for n in range(cores + 1)]
    return max(sum(widths[i:j]) for i, j in pairwise(ends)) * cores / sum(widths)


def _dot_blocks(contraction: ContractionLoops, core: CoreModel, lanes: int) -> dict[Var, int]:
    """Returns the register blocks of a contraction whose vector loop is the summed loop.

    Each result has a vector of partial sums. If each factor has a result loop of its own, a block
    is a square of results; else it has a single result.
    """
    stage = contraction.stage
    square = 4 if core.count >= 32 else 3
    rows = {}
    for loops, other in (
        (contraction.vector_factor, contraction.row_factor),
        (contraction.row_factor, contraction.vector_factor),
    ):
        free = tuple(v for v in stage.iters if v in loops and v not in other)
        if free:
            rows[_longest(free)] = square
    if len(rows) == 2:
        core.because("blocks: square of sums", stage, *rows, contraction.vector)
        return {**rows, contraction.vector: lanes}
    return {contraction.vector: vector_block(contraction.vector, stage, core)}


def _longest(variables: Vars) -> Var:
    """Returns the longest loop; among equally long loops, the innermost."""
    return max(enumerate(variables), key=lambda pair: (trips(pair[1]), pair[0]))[1]


def _blocked(rows: Vars, row_limit: int) -> Var:
    """Returns the loop of rows along which register blocks run.

    A loop of symbolic size may have few trips, so a loop that certainly fills half a block is
    preferred.
    """
    long_rows = tuple(v for v in rows if 2 * (known_extent(v) or 0) >= row_limit)
    return _longest(long_rows or rows)


def most_rows(vectors: int, core: CoreModel) -> int:
    """Returns the largest number of rows whose accumulators fit the registers, together with
    `vectors` loaded vectors and one broadcast value."""
    table = {4: 6, 3: 8, 2: 12, 1: 14} if core.count >= 32 else {2: 6, 1: 10}
    return table[max(1, min(vectors, 4))]


# ---- K-blocks -----------------------------------------------------------------------------------


def k_blocks_of(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    core: CoreModel,
) -> dict[Var, int]:
    """Maps each reduced loop that K-blocks cut to its elements in a K-block, outermost loop first.

    The result is empty if one K-block holds all steps of the sum. `common` are the loops that tiles
    cut.
    """
    stage = contraction.stage
    if (
        contraction.vector in stage.reduce
        or contraction.along_both
        or _has_open_rows(common, contraction)
    ):
        return {}
    loops = [v for v in stage.reduce if trips(v) > 1]
    steps, uncut = _steps_at_once(common, contraction, blocks, core)
    if points(loops) <= uncut:
        return {}
    inner_steps = 1
    k_blocks: dict[Var, int] = {}
    for var in reversed(loops):
        size = trips(var)
        if k_blocks:
            k_blocks[var] = 1
        elif inner_steps * size > steps * 5 // 4:
            count = -(-size * inner_steps // steps)
            step = blocks.get(var, 1)
            length = ceil(ceil(size / count) / step) * step
            if length < size or as_int(size) is None:
                k_blocks[var] = length
        inner_steps *= size
    return dict(reversed(k_blocks.items()))


def _steps_at_once(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    core: CoreModel,
) -> tuple[int, int]:
    """Returns (steps of a K-block, steps of the longest sum that is not cut into K-blocks)."""
    steps = core.knobs.k_block
    stage = contraction.stage
    if steps is not None:
        core.because("k_blocks: knob k_block, by price", stage)
        return steps, steps * 5 // 4
    panel = blocks.get(contraction.vector, 1) * _element(contraction)
    word = neighbours(stage)
    if _one_pass(contraction, blocks):
        core.because("k_blocks: sixteen pages for one block of rows", stage)
        return max(MIN_RUN, int(ONE_PASS / panel)), WHOLE * word
    followed = _followed(common, contraction, blocks, core)
    if followed and _fed(contraction, blocks, panel * word, core):
        core.because("k_blocks: long ones from L2", stage)
        return LONG * word, DEEP * word
    # Sums are stored between K-blocks in any case. So K-blocks are short: a K-block of a panel
    # stays in the first-level cache while all rows use it.
    core.because("k_blocks: fit L1", stage)
    return max(MIN_RUN, int(core.l1 * 2 / 3 / panel)), WHOLE * word


def _followed(
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    core: CoreModel,
) -> bool:
    """Returns True if a core has at least `MANY` rows for each long K-block, and at least
    `FOLLOWED` long K-blocks.

    If tiles cut the columns, a core has all rows of some panels. Otherwise it has some rows of all
    panels.
    """
    stage = contraction.stage
    rows = contraction.rows
    panel_loops = [v for v in stage.iters if v not in rows]
    panels = points(v for v in panel_loops if v is not contraction.vector)
    panels *= tile_count((contraction.vector,), blocks)
    steps = points(stage.reduce)
    steps //= neighbours(stage)
    k_blocks = panels * (1 if steps <= DEEP else -(-steps // LONG))
    if any(v in common and trips(v) >= core.cores for v in panel_loops):
        return points(rows) >= MANY and k_blocks // core.cores >= FOLLOWED
    return points(rows) // core.cores >= MANY and k_blocks >= FOLLOWED


def _fed(
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    panel: float,
    core: CoreModel,
) -> bool:
    """Returns True if the second-level cache delivers a panel as fast as the block multiplies it.

    `panel` is the number of bytes of a panel in one step of the sum.
    """
    rows = contraction.rows
    size, block = max(((trips(v), n) for v, n in blocks.items() if v in rows), default=(1, 1))
    vectors = -(-blocks.get(contraction.vector, 1) // lanes_of(contraction.stage, core))
    cycles = size / -(-size // block) * vectors / core.fmas
    return panel <= FED * cycles


def _one_pass(contraction: ContractionLoops, blocks: Mapping[Var, int]) -> bool:
    """Returns True if one register block covers all rows, so that each panel is used only once."""
    rows = contraction.rows
    return all((known_extent(v) or inf) <= blocks.get(v, 1) for v in rows)


def _element(contraction: ContractionLoops) -> float:
    """Returns the stored bytes of the vector operand for each column and step of the sum.

    If the operand is packed, these are its bytes in scratch.
    """
    stage = contraction.stage
    if packs(stage, contraction.vector, contraction.rows):
        return stage.body[0].dtype.bytes / neighbours(stage)
    step, reads = _streamed_reads(contraction)
    if step is None:
        return stage.body[0].dtype.bytes
    loops = frozenset().union(*(depends(stage, node) for node in reads))
    inside = [v for v in stage.reduce if v not in loops]
    return sum(node.dtype.bytes for node in reads) / points(inside)


def _streamed_reads(contraction: ContractionLoops) -> tuple[Var | None, tuple[Read, ...]]:
    """Returns the innermost summed loop along which the vector operand is read, and its reads that
    vary with both this loop and the vector loop.

    For a quantised weight `level[k, j] * scale[k // 32, j]`, the loop that counts the 32 steps of a
    scale does not occur in the read of `scale`. A read of packed levels, where one element holds
    the levels of several steps, lacks the loop over these steps too.
    """
    stage = contraction.stage
    for step in reversed([v for v in stage.reduce if trips(v) > 1]):
        moving = {contraction.vector, step}
        reads = tuple(n for n in stage.accesses if moving <= depends(stage, n))
        if reads:
            return step, reads
    return None, ()


def _has_open_rows(common: Collection[Var], contraction: ContractionLoops) -> bool:
    """Returns True if the number of rows of a tile is unknown.

    In that case sums cannot be stored between K-blocks, and prefetches cannot be divided among
    rows.
    """
    return any(is_open(v) and v not in common for v in contraction.rows)


# ---- loops --------------------------------------------------------------------------------------


def contraction_nest(
    stages: tuple[int, ...],
    common: Collection[Var],
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    inner: frozenset[Var],
    core: CoreModel,
    *,
    beyond_l2: bool,
    copied: bool = False,
) -> Nest:
    """Returns the nest of a contraction: the loop over panels is outside, then K-blocks, then rows.

    `common` are the loops that tiles cut. A tile covers more than one register block along the
    loops `inner`. `beyond_l2`: the vector operand comes from the third-level cache or memory.
    `copied`: a vector operand that needs no computation is copied to scratch before it is
    multiplied.
    """
    stage = contraction.stage
    rows = contraction.rows
    k_blocks = k_blocks_of(common, contraction, blocks, core) if len(stages) == 1 else {}
    packed = packs(stage, contraction.vector, rows, copied)
    if packed:
        unpacks = unpacking_operations(stage, contraction.vector)
        core.because("packed: unpacked once" if unpacks else "packed: knob copy, by price", stage)
    core.because("order: panels, K-blocks, rows", stage)
    core.because("ahead: the next K-block", stage)
    # A symbolic vector loop has blocks of several widths. The rows are computed inside each of
    # them.
    wide = contraction.vector if is_open(contraction.vector) else None
    panels = [v for v in stage.iters if v not in rows and (packed or v in inner or v is wide)]
    panels.sort(key=lambda v: v is contraction.vector)
    row_order = [v for v in rows if v in inner]
    order = (*panels, *k_blocks, *row_order)
    # Packing reads a K-block before it is multiplied, which hides the latency of memory.
    hides = packed or _has_open_rows(common, contraction) or not _streams(contraction, blocks)
    hides |= not core.hinted and _one_pass(contraction, blocks)
    return Nest(
        stages,
        tuple(v.name for v in order),
        named(blocks),
        contraction.vector.name,
        tuple((v.name, n) for v, n in k_blocks.items()),
        ahead=0 if hides or not beyond_l2 else _level(contraction, blocks, k_blocks, core),
        packed=packed,
    )


def _level(
    contraction: ContractionLoops,
    blocks: Mapping[Var, int],
    k_blocks: Mapping[Var, int],
    core: CoreModel,
) -> int:
    """Returns the cache level, 1 or 2, to which the next K-block is prefetched.

    It is 2 under three conditions. One block covers all rows. Two K-blocks exceed the first-level
    cache. The rows are so few that fetching each line twice, first to the second and then to the
    first level, would take longer than the multiplication. With more rows, the panel reaches the
    first-level cache part by part anyway.
    """
    rows = prod(min(blocks.get(v, 1), trips(v)) for v in contraction.rows)
    rate = 4 * core.lanes * core.fmas / rows  # bytes a cycle that the multiply-adds consume
    steps = points(v for v in contraction.stage.reduce if v not in k_blocks)
    panel = blocks.get(contraction.vector, 1) * _element(contraction)
    size = panel * steps * prod(k_blocks.values())
    bypasses_l1 = _one_pass(contraction, blocks) and 2 * size > core.l1
    return 2 if bypasses_l1 and rate > FED else 1


def _streams(contraction: ContractionLoops, blocks: Mapping[Var, int]) -> bool:
    """Returns True if the vector operand is stored in panels as wide as a block, one after the
    other."""
    stage = contraction.stage
    step, reads = _streamed_reads(contraction)
    if step is None or len(reads) != 1:
        return False
    access, block = stage.accesses[reads[0]], blocks[contraction.vector]
    # If one element holds several steps of the sum, a block must contain all of these steps.
    inside = stage.reduce[stage.reduce.index(step) + 1 :]
    if any(trips(v) != blocks.get(v, 1) for v in inside):
        return False
    # Guards may depend only on a data-dependent index, such as the number of an expert's matrix.
    data_loops = {v for v, _ in reads[0].indirect}
    if any(not data_loops.issuperset(free_vars(guard.index)) for guard in access.guards):
        return False
    irregular = [v for v in stage.reduce if v is not step and stride(access, v) is None]
    # Steps are compared in whole words, because neighbouring steps may be stored in one word.
    count = max(2, neighbours(stage))
    after, first = (substitute(access.offset, {step: const(n)}) for n in (count, 0))
    return not irregular and as_int(after - first) == count * block


def fair(tiles: int, core: CoreModel) -> bool:
    """Returns True if all cores have about the same number of tiles."""
    return tiles % core.cores == 0 or tiles >= FEW * core.cores


def parts_of(tiles: int, rows: int, core: CoreModel, row_limit: int) -> int:
    """Returns the number of pieces, each of at most `row_limit` rows, into which the rows are cut.

    `tiles` is the number of tiles without this cut. There are more pieces than the limit requires
    if the cores would otherwise get different numbers of tiles.
    """
    pieces = -(-rows // row_limit)
    while not fair(tiles * pieces, core):
        if rows // (pieces + 1) < row_limit // 12:
            break
        pieces += 1
    return pieces
