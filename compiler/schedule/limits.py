"""The rates of a machine, and the limits of what passes put into one kernel."""

from tcc.frozen import frozen
from tcc.schedule.alternatives import Seconds


@frozen
class Form:
    """The properties of a kernel's structure that prices choose (see `FusionLimits`)."""

    streams: bool | None = None
    repeats: bool = False
    merges_reductions: bool = False


@frozen
class FusionLimits:
    """The limits of what passes put into one kernel, measured on cores with 1 MiB of second-level
    cache.

    Work: in the time in which a core writes a byte and reads it again, it does `exchange`
    operations of stage bodies. Copying `launch_bytes` bytes takes as long as one launch.

    Memory: the values of a tile's stages may have `room` bytes, in tiles of `stream_rows` rows. A
    row of at least `long_row` bytes comes from beyond the second-level cache. At least
    `transposed_rows` rows are needed to fill a vector when they are transposed.

    Threads: in a nanosecond, a core does `contraction_rate` operations of a contraction's body, or
    `plain_rate` operations of other bodies. A thread with less than `least_nanoseconds` of work
    costs more than it saves.

    `streams`: if True, each loop that can be a streaming loop becomes one; if False, none does. If
    None, a rule decides without prices: a loop streams if rows exceed `room` or `long_row` bytes,
    or if contractions read `transposed_rows` rows along their sums. `repeats`: if several tiles
    read a stage's results, each of them may compute the stage for itself. `reuses_results`: values
    of symbolic size may occupy the memory of results until a later stage reads them.
    `merges_reductions`: neighbouring reductions that read the same elements become one.
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
    streams: bool | None = None
    repeats: bool = False
    reuses_results: bool = False
    merges_reductions: bool = False

    @property
    def form(self) -> Form:
        """Returns the fields that differ between the forms of one kernel."""
        return Form(self.streams, self.repeats, self.merges_reductions)


TYPICAL_LIMITS = FusionLimits()
# Prices decide how much a tile holds, so `room` is high. It is not higher, because every thread
# keeps memory for the largest tile as long as the program is loaded.
CORE_LIMITS = FusionLimits(room=1 << 22, reuses_results=True)


@frozen
class Rates:
    """The rates of a machine, in units a second.

    The units are: multiply-adds of contractions (`products`), other operations on elements
    (`elementwise`), bytes read from memory (`bytes`), bytes of weights read (`weights`), and bytes
    that one stage of a kernel writes and another reads (`exchanged`).
    """

    products: float = 180e9
    elementwise: float = 90e9
    bytes: float = 27e9
    weights: float = 27e9
    exchanged: float = 80e9

    def seconds(self, products: float, elementwise: float, bytes_: float) -> Seconds:
        """Returns the seconds that work and traffic take, one after the other."""
        return Seconds(
            products / self.products + elementwise / self.elementwise + bytes_ / self.bytes
        )


TYPICAL_RATES = Rates()
