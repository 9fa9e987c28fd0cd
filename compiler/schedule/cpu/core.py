"""The numbers of a core from which schedules are chosen."""

from tcc.frozen import frozen
from tcc.schedule.cpu.reasons import Because, unrecorded
from tcc.schedule.limits import CORE_LIMITS, FusionLimits


@frozen
class Knobs:
    """Settings that replace the analytic choice; by default none does.

    Contractions: `panel` is the number of vectors of columns in a panel, `k_block` about the number
    of steps in a K-block. `copy` 1 copies K-blocks of the vector operand to scratch. A tile has at
    most `tall` register blocks of a symbolic loop of rows.

    Other stages: a block has `wide` vectors, and a tile has `grain` times its elements. `along` 1
    computes pointwise stages along the reductions that read them.

    Streaming loops: a block has about `stream_block` steps. Symbolic dims: `fixed` 1 has vectors
    run along a loop of fixed size.
    """

    panel: int | None = None
    k_block: int | None = None
    copy: int = 0
    tall: int | None = None
    wide: int | None = None
    grain: int = 1
    along: int = 1
    stream_block: int | None = None
    fixed: int = 0


@frozen
class CoreModel:
    """The resources of one core that a kernel may use.

    `lanes` are f32 elements of a vector, `count` vector registers, `l1` and `l2` bytes of the
    core's caches, and `cores` share the work. `fmas` and `loads` are vector instructions a cycle,
    `latency` the cycles until a sum can be added to again.
    `hinted`: a stream from memory is faster if its lines are prefetched. `limits` bound what
    becomes one kernel. `skips` is `Schedule.skips` where attention's masks allow it. `masked`:
    loads and stores may leave out lanes of a vector at the price of whole vectors. Rules call
    `because` with their name and the field that they set (`tcc.schedule.cpu.reasons`).
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
