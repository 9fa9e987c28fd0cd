"""The numbers of a machine that bound what passes put into one kernel."""

from tcc.record import record


@record
class FusionLimits:
    """Measured on cores with 1 MiB of second-level cache.

    Work, as machines give it: so many body operations as `exchange` take as long as to write a
    byte and read it again, and copying `launch_bytes` as long as a launch.

    Memory, in bytes: `room` is what a unit may hold of its stages, in tiles of `stream_rows`;
    a row of `long_row` comes from beyond the second-level cache.  From `transposed_rows` on rows
    fill a vector if turned around.

    Threads: a core does `contraction_rate` body operations of a contraction in a nanosecond and
    `plain_rate` others; a thread with less than `least_nanoseconds` to do costs more than it saves.

    `walks`: whether units walk along a loop where they need not; None, without prices: where rows
    are of more than `room` or `long_row`, or products read `transposed_rows` along their sums.
    `repeats`: whether units do stages again whose results several units read.
    `reuses_results`: whether values of open size wait for later stages where results go.
    `beside`: whether neighbouring reductions that read the same elements are one.
    """

    exchange: float = 1.1
    launch_bytes: float = 16e3
    room: int = 1 << 19
    stream_rows: int = 256
    long_row: int = 1 << 20
    transposed_rows: int = 8
    contraction_rate: int = 200
    plain_rate: int = 10
    least_nanoseconds: int = 1000
    walks: bool | None = None
    repeats: bool = False
    reuses_results: bool = False
    beside: bool = False


TYPICAL_LIMITS = FusionLimits()
# What units hold is decided by its price; but every thread has memory for the largest of all, for
# as long as the program is loaded.
CORE_LIMITS = FusionLimits(room=1 << 22, reuses_results=True)


@record
class Rates:
    """What a machine does in a second: `products` that are added up, `others` for operations on
    elements, and `bytes` of memory read; bytes of `weights` read, and bytes that stages of a kernel
    have `exchanged`, written and read again."""

    products: float = 180e9
    others: float = 90e9
    bytes: float = 27e9
    weights: float = 27e9
    exchanged: float = 80e9

    def seconds(self, products: float, others: float, bytes_: float) -> float:
        """How long work and traffic take, one after the other."""
        return products / self.products + others / self.others + bytes_ / self.bytes


TYPICAL_RATES = Rates()
