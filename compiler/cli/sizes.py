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


def fitting_shapes(
    program: Program, given: Mapping[int, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """Shapes of the input ports that `given` lacks: symbolic sizes are 1, but where checks fail
    then one after the other becomes the smallest of a few sizes with which the fewest fail.

    Checks of numbers that only a run knows count as met.
    """
    known = {(port, axis): n for port, dims in given.items() for axis, n in enumerate(dims)}
    fixed = constant_registers(program)
    ports = [(n, p) for n, p in enumerate(program.inputs) if n not in given]
    asked = {i.target: (i.a, i.b) for i in program.body if isinstance(i, Let) and i.op is IntOp.DIM}
    # Equal sizes have one register; what is computed from others follows them.
    free = [dim for _, port in ports for dim in port.dims if dim in asked and dim not in fixed]
    free = list(dict.fromkeys(free))

    def trial(sizes: Mapping[Register, int]) -> tuple[int, dict[Register, int]]:
        registers: dict[Register, int] = {}
        dims = {**known, **{asked[dim]: size for dim, size in sizes.items()}}
        return _missed(program.body, registers, dims), registers

    def missed(sizes: Mapping[Register, int]) -> int:
        return trial(sizes)[0]

    def mended(sizes: Mapping[Register, int]) -> Mapping[Register, int]:
        for dim in free if missed(sizes) else ():
            sizes = min(({**sizes, dim: size} for size in _SIZES), key=missed)
        return sizes

    best = mended(dict.fromkeys(free, 1))
    if missed(best):
        equal = min((dict.fromkeys(free, size) for size in _SIZES), key=missed)
        best = min(best, mended(equal), key=missed)
    found = trial(best)[1]
    return {number: tuple(found.get(dim, 1) for dim in port.dims) for number, port in ports}


def step_sizes(
    program: Program, shapes: Mapping[int, Sequence[int]]
) -> list[tuple[int | None, ...]]:
    """What each step of the program is told, of kernels: None for what the `shapes` of inputs do
    not decide, as numbers of data and of a trip are not."""
    registers: dict[Register, int] = {}
    dims = {(port, axis): n for port, own in shapes.items() for axis, n in enumerate(own)}
    _missed(program.body, registers, dims)
    written = Counter(i.target for i in walk_instructions(program.body) if isinstance(i, Let))
    return [
        tuple(registers.get(r) if written[r] == 1 else None for r in step.ints)
        if isinstance(step, Launch)
        else ()
        for step in walk_instructions(program.body)
        if isinstance(step, STEPS)
    ]


def _missed(body: Sequence[Instr], registers: dict[Register, int], dims: _Dims) -> int:
    """How many checks fail, of all branches and of one trip of each loop; sets `registers`."""
    count = 0
    for instr in body:
        match instr:
            case Let():
                value = let_value(instr, registers, dims)
                if value is not None:
                    registers[instr.target] = value
            case Check() if instr.a in registers and instr.b in registers:
                count += not MEANING[instr.relation](registers[instr.a], registers[instr.b])
            case Branch(when=when) if when in registers:
                taken = instr.then if registers[when] else instr.otherwise
                count += _missed(taken, registers, dims)
            case Branch():
                count += _missed((*instr.then, *instr.otherwise), registers, dims)
            case Loop():
                count += _missed(instr.body, registers, dims)
            case _:
                pass
    return count
