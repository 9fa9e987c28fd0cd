"""Places values of symbolic size, which later stages read, in the memory of the kernel's results.

    e[i, j] = exp(x[i, j] - m[i])        j below n
    s[i] = sum(j) e[i, j]                         e is stored in the memory of y: its last reader
    y[i, j] = e[i, j] / s[i]                      overwrites each element by an element of y

A value of static size can be stored in a tile's scratch, which has a static size.  A value of
symbolic size cannot, so this module finds a result of the kernel in whose memory it can be stored.
"""

from collections.abc import Sequence

from tcc.ir.expr import nest_size
from tcc.ir.expr.scalar import Read, StageRef, reads_of_stages
from tcc.ir.index import Vars, as_int
from tcc.ir.tile.group import Strip
from tcc.ir.types import DType
from tcc.passes.fuse.sliding_window import Loops
from tcc.passes.fuse.unify_iterators import Shaped, needs_memory, radix_size


def result_places(
    linked: Sequence[Shaped], loops: Loops, outputs: Sequence[StageRef], dtypes: Sequence[DType]
) -> dict[int, int]:
    """Maps each stage of symbolic size to the index of the result in whose memory it is stored.

    A stage is left out if no result is suitable.  `dtypes` are the types of the stored results.
    Several stages may use the memory of one result: each overwrites the previous one, element by
    element.
    """
    places: dict[int, int] = {}
    # Has for each result that is used: the first stage that writes to its memory, and its index.
    first: dict[int, int] = {}
    for number in range(len(linked) - 1, -1, -1):
        ref = StageRef(number)
        place = outputs.index(ref) if ref in outputs else first.get(_replacing(linked, number))
        if place is None or not _is_plain(linked[number], loops.strips[number], dtypes[place]):
            continue
        waits = is_open(linked, number, loops.common)
        if waits and not {*loops.common} <= {*linked[number].stage.iters}:
            continue
        if waits or ref in outputs:
            first = {stage: n for stage, n in first.items() if n != place} | {number: place}
        if waits:
            places[number] = place
    return places


def is_open(linked: Sequence[Shaped], number: int, common: Vars) -> bool:
    """Returns True if later stages read a stage from memory, and its part in a tile has symbolic
    size.

    `common` are the loops that all stages share.
    """
    size = nest_size(v for v in linked[number].axes if v not in common)
    return as_int(size) is None and needs_memory(linked, number, common)


def _is_plain(shaped: Shaped, strip: Strip | None, dtype: DType) -> bool:
    """Returns True if a stage computes one value of type `dtype` at each point, without a
    reduction."""
    (body, *further) = shaped.stage.body
    several = further or shaped.places or strip is not None
    return not several and shaped.stage.monoid is None and body.dtype is dtype


def _replacing(linked: Sequence[Shaped], number: int) -> int:
    """Returns the last stage that reads stage `number`; -1 if it must not overwrite stage `number`.

    It may overwrite stage `number` if at each point p it reads only element p of stage `number`.
    """
    readers = [
        (n, node)
        for n, shaped in enumerate(linked)
        for node, source in reads_of_stages(*shaped.stage.body)
        if source.stage == number
    ]
    last = max((n for n, _ in readers), default=-1)
    return last if all(_is_same(linked, number, n, r) for n, r in readers if n == last) else -1


def _is_same(linked: Sequence[Shaped], number: int, reader: int, node: Read) -> bool:
    """Returns True if stage `reader` reads, by `node`, the element that its result would
    overwrite."""
    logical = linked[reader].logical
    if node.indirect or node.indices != logical or len(logical) != len(linked[number].logical):
        return False
    sizes = [tuple(map(radix_size, linked[n].logical)) for n in (number, reader)]
    return sizes[0] == sizes[1]
