"""The properties of a core, and the knobs, from which rules choose schedules."""

from tcc.frozen import frozen
from tcc.schedule.cpu.reasons import Because, unrecorded
from tcc.schedule.limits import CORE_LIMITS, FusionLimits


@frozen
class Knobs:
    """Settings that replace what rules choose; the default values replace nothing.

    Contractions (`tcc.schedule.cpu.contraction` defines the terms): `panel` is the number of
    vectors across a panel, and `k_block` about the number of steps of a K-block. `copy` = 1:
    K-blocks of the vector operand are copied to scratch. `tall` is the largest number of register
    blocks that a tile has along a symbolic loop of rows.

    Other stages: `wide` is the number of vectors of a block. A tile has `grain` times as many
    elements as the rules choose. `along` = 1: pointwise stages are computed inside the loop of the
    reduction that reads them; 0: they are not.

    Streaming loops: `stream_block` is about the number of steps of a block. `direction` = 1:
    vectors run along the rows where the rules choose the streaming loop, and the other way round.
    Symbolic dims: `fixed` = 1: vectors run along a loop of known size. `vector` is the number of
    the loop along which vectors run, among the loops of the stage with the most work.
    """

    panel: int | None = None
    k_block: int | None = None
    copy: int = 0
    tall: int | None = None
    wide: int | None = None
    grain: int = 1
    along: int = 1
    stream_block: int | None = None
    direction: int = 0
    fixed: int = 0
    vector: int | None = None


@frozen
class CoreModel:
    """The resources of one core that a kernel may use.

    `lanes`: f32 elements of a vector. `count`: vector registers. `l1`, `l2`: bytes of the core's
    caches. `cores`: the number of cores that share the tiles. `fmas`, `loads`: vector instructions
    a cycle. `latency`: the cycles until the next addition to the same sum.

    `hinted`: prefetching lines makes a stream from memory faster. `limits`: what may become one
    kernel. `skips`: streaming loops may leave out masked blocks (`Schedule.skips`). `masked`: a
    load or store of some lanes of a vector takes no longer than a load or store of all lanes.
    `because`: each rule calls it with the field that it sets and the rule's name
    (`tcc.schedule.cpu.reasons`).
    """

    lanes: int
    count: int
    l2: int = 1 << 20
    cores: int = 2
    fmas: float = 2.0
    loads: float = 1.3
    latency: float = 4.0
    l1: int = 48 << 10
    hinted: bool = True
    knobs: Knobs = Knobs()
    limits: FusionLimits = CORE_LIMITS
    skips: bool = True
    masked: bool = False
    because: Because = unrecorded


# A core with 512-bit vectors, for callers without a machine.
TYPICAL_CORE = CoreModel(16, 32)
