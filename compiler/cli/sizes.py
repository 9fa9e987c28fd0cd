"""Sizes of runs by the program's own arithmetic: of inputs that are made up, and of kernels."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tcc.ir.program import (
    Branch,
    Check,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Program,
    Register,
    constant_registers,
)
from tcc.ir.program.arithmetic import MEANING, let_value
from tcc.ir.program.operands import STEPS, walk_instructions

_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 224, 256, 512, 1024, 2048, 4096, 16384)
_Dims = Mapping[tuple[int, int], int]
_Pair = tuple[int, int]


def fitting_shapes(
    program: Program,
    known_shapes: Mapping[int, Sequence[int]],
    smallest: int = 1,
    larger: bool = False,
) -> dict[int, tuple[int, ...]]:
    """Shapes of the input ports that `given` lacks: symbolic sizes are `least`, but where checks
    fail then one after the other becomes the smallest of a few sizes with which the fewest fail.

    The few sizes include what the failing checks compare, so that a size which `given` fixes is
    found whatever it is.  With `larger` sizes are then twice as large and one more, all or one by
    one, where no more checks fail outside of branches that data choose: a run may refuse them.
    Checks of numbers that only a run knows count as met.
    """
    known_dims = {
        (port, axis): n for port, dims in known_shapes.items() for axis, n in enumerate(dims)
    }
    fixed = constant_registers(program)
    ports = [(n, p) for n, p in enumerate(program.inputs) if n not in known_shapes]
    dim_places = {
        i.target: (i.a, i.b)
        for i in program.body
        if isinstance(i, Let) and i.op is IntOp.DIM and i.a not in known_shapes
    }
    # Equal sizes have one register; what is computed from others follows them.
    free = [dim for _, port in ports for dim in port.dims if dim in dim_places and dim not in fixed]
    free = list(dict.fromkeys(free))

    def trial(
        sizes: Mapping[Register, int], branches: bool = True
    ) -> tuple[list[_Pair], dict[Register, int]]:
        registers: dict[Register, int] = {}
        dims = {**known_dims, **{dim_places[dim]: size for dim, size in sizes.items()}}
        body = [i for i in program.body if branches or not isinstance(i, Branch)]
        return _missed(body, registers, dims), registers

    def missed(sizes: Mapping[Register, int], branches: bool = True) -> int:
        return len(trial(sizes, branches)[0])

    def mended(sizes: Mapping[Register, int]) -> Mapping[Register, int]:
        for dim in free if missed(sizes) else ():
            failing = trial(sizes)[0]
            compared = {n for a, b in failing for n in (max(a, b), sizes[dim] + abs(a - b))}
            candidates = [
                smallest,
                *sorted(_SIZES, key=lambda n: (n < smallest, n)),
                *sorted(compared),
            ]
            sizes = min(({**sizes, dim: size} for size in candidates), key=missed)
        return sizes

    best = mended(dict.fromkeys(free, smallest))
    if missed(best):
        equal = min((dict.fromkeys(free, size) for size in _SIZES), key=missed)
        best = min(best, mended(equal), key=missed)
    if larger:
        every = {dim: 2 * size + 1 for dim, size in best.items()}
        for dims in (free, *([dim] for dim in free)):
            grown = {**best, **{dim: every[dim] for dim in dims}}
            best = grown if missed(grown, False) <= missed(best, False) else best
    sizes_of = trial(best)[1]
    return {number: tuple(sizes_of.get(dim, 1) for dim in port.dims) for number, port in ports}


def step_sizes(
    program: Program, shapes: Mapping[int, Sequence[int]]
) -> list[tuple[int | None, ...]]:
    """What each step of the program is told, of kernels: None for what the `shapes` of inputs do
    not decide, as numbers of data and of a trip are not."""
    registers: dict[Register, int] = {}
    dims = {(port, axis): n for port, shape in shapes.items() for axis, n in enumerate(shape)}
    _missed(program.body, registers, dims)
    write_counts = Counter(i.target for i in walk_instructions(program.body) if isinstance(i, Let))
    return [
        tuple(registers.get(r) if write_counts[r] == 1 else None for r in step.ints)
        if isinstance(step, Launch)
        else ()
        for step in walk_instructions(program.body)
        if isinstance(step, STEPS)
    ]


def _missed(body: Sequence[Instr], registers: dict[Register, int], dims: _Dims) -> list[_Pair]:
    """The numbers that each failing check compares, of all branches and of one trip of each loop;
    sets `registers`."""
    pairs: list[_Pair] = []
    for instr in body:
        match instr:
            case Let():
                value = let_value(instr, registers, dims)
                if value is not None:
                    registers[instr.target] = value
            case Check() if instr.a in registers and instr.b in registers:
                a, b = registers[instr.a], registers[instr.b]
                pairs += [] if MEANING[instr.relation](a, b) else [(a, b)]
            case Branch(when=when) if when in registers:
                branch = instr.then if registers[when] else instr.otherwise
                pairs += _missed(branch, registers, dims)
            case Branch():
                pairs += _missed((*instr.then, *instr.otherwise), registers, dims)
            case Loop():
                pairs += _missed(instr.body, registers, dims)
            case _:
                pass
    return pairs
