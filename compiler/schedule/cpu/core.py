"""The numbers of a core that schedules are chosen from."""

from tcc.record import record
from tcc.schedule.limits import CORE_LIMITS, FusionLimits


@record
class Knobs:
    """What may be turned of the analytic choice; by default nothing is.

    Of a contraction: `panel` vectors of columns, about `k_block` steps of a sum at once, whether a
    K-block of the vector operand is a `copy` in scratch, and at most `tall` register blocks of an
    open loop of rows in a unit.  Of anything else: `wide`
    vectors a block, `grain` times the elements that a unit has, and whether pointwise stages are
    made `along` the reductions behind them.  Of a streaming loop: about `stream_block` steps at a
    time.  Of loops with open sizes: whether vectors run along one of `known` size.
    """

    panel: int | None = None
    k_block: int | None = None
    copy: int = 0
    tall: int | None = None
    wide: int | None = None
    grain: int = 1
    along: int = 1
    stream_block: int | None = None
    known: int = 0


@record
class CoreModel:
    """What a kernel may use: `lanes` f32 elements a vector, `count` vector registers, `l1` and `l2`
    bytes of a core's caches, and `cores` that share the work.  `fmas` and `loads` are vector
    instructions a cycle, `latency` the cycles until a sum can be added to again; `hinted` tells
    whether a stream from memory is faster where its lines are asked for ahead; `limits` bound what
    becomes one kernel; `skips` as of `Schedule`, where attention's masks allow it; `masked`: loads
    and stores may leave out lanes of a vector at the price of whole ones."""

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


# A core with 512-bit vectors, for those who only want to see what a model becomes.
TYPICAL_CORE = CoreModel(16, 32)
