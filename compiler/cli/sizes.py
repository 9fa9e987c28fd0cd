"""Computes sizes by running a program's integer arithmetic: sizes of random inputs and kernels."""

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
    program: Program, shapes: Mapping[int, Sequence[int]], lowest: int = 1, larger: bool = False
) -> dict[int, tuple[int, ...]]:
    """Returns shapes of the input ports that `shapes` lacks, such that few checks fail.

    Every symbolic size starts at `lowest`. While checks fail, one size after the other is replaced
    by a candidate with which the fewest checks fail, the smallest of several. The candidates
    include the numbers that failing checks compare, so that any size fixed by `shapes` can be
    matched.

    With `larger`, sizes then become twice as large plus one, all together or one by one, if no more
    checks fail outside of data-dependent branches. A run may still refuse these sizes. A check of
    numbers that are known only at run time counts as met.
    """
    known_dims = {(port, axis): n for port, dims in shapes.items() for axis, n in enumerate(dims)}
    fixed = constant_registers(program)
    ports = [(n, p) for n, p in enumerate(program.inputs) if n not in shapes]
    dim_places = {
        i.target: (i.a, i.b)
        for i in program.body
        if isinstance(i, Let) and i.op is IntOp.DIM and i.a not in shapes
    }
    # The registers whose sizes can be chosen. A size that the program computes cannot be chosen,
    # and axes of equal size share a register.
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
            failing_pairs = trial(sizes)[0]
            compared = {n for a, b in failing_pairs for n in (max(a, b), sizes[dim] + abs(a - b))}
            numbers = [lowest, *sorted(_SIZES, key=lambda n: (n < lowest, n)), *sorted(compared)]
            sizes = min(({**sizes, dim: size} for size in numbers), key=missed)
        return sizes

    best = mended(dict.fromkeys(free, lowest))
    if missed(best):
        equal_sizes = min((dict.fromkeys(free, size) for size in _SIZES), key=missed)
        best = min(best, mended(equal_sizes), key=missed)
    if larger:
        larger_sizes = {dim: 2 * size + 1 for dim, size in best.items()}
        for dims in (free, *([dim] for dim in free)):
            trial_sizes = {**best, **{dim: larger_sizes[dim] for dim in dims}}
            best = trial_sizes if missed(trial_sizes, False) <= missed(best, False) else best
    sizes_of = trial(best)[1]
    return {number: tuple(sizes_of.get(dim, 1) for dim in port.dims) for number, port in ports}


def step_sizes(
    program: Program, shapes: Mapping[int, Sequence[int]]
) -> list[tuple[int | None, ...]]:
    """Returns the size arguments of each step of the program; empty for steps that are no kernel.

    An argument is None if the `shapes` of the inputs do not determine it: it comes from data, or
    differs between the iterations of a loop.
    """
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
    """Returns the pair of numbers that each failing check compares, and sets `registers`.

    If the condition of a branch is unknown, both of its bodies are visited. Each loop is visited
    once.
    """
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
    return pairs
