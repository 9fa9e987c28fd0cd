"""Sizes from the integer arithmetic of a program: shapes of random inputs, sizes of kernels."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tcc.runtime.buffer_lives import STEPS
from tcc.runtime.host_program import HostInstruction, HostProgram, let_value, walk
from tcc.runtime.instructions import OPERATIONS, RELATIONS

_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 224, 256, 512, 1024, 2048, 4096, 16384)
_CONST, _DIM = OPERATIONS.index("const"), OPERATIONS.index("dim")
_MEANING: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "eq": operator.eq,
        "le": operator.le,
        "lt": operator.lt,
        "divides": lambda a, b: a > 0 and b % a == 0,
    }
)
_Dims = Mapping[tuple[int, int], int]
_Pair = tuple[int, int]


def fitting_shapes(
    program: HostProgram,
    shapes: Mapping[int, Sequence[int]],
    lowest: int = 1,
    larger: bool = False,
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
    fixed = _constants(program)
    ports = [(n, p) for n, p in enumerate(program.inputs) if n not in shapes]
    dim_places = {
        i.fields["target"]: (i.fields["a"], i.fields["b"])
        for i in program.body
        if i.name == "let" and i.fields["op"] == _DIM and i.fields["a"] not in shapes
    }
    # The registers whose sizes can be chosen. A size that the program computes cannot be chosen,
    # and axes of equal size share a register.
    free = [dim for _, port in ports for dim in port.dims if dim in dim_places and dim not in fixed]
    free = list(dict.fromkeys(free))

    def trial(
        sizes: Mapping[int, int], branches: bool = True
    ) -> tuple[list[_Pair], dict[int, int]]:
        registers: dict[int, int] = {}
        dims = {**known_dims, **{dim_places[dim]: size for dim, size in sizes.items()}}
        body = [i for i in program.body if branches or i.name != "branch"]
        return _missed(body, registers, dims), registers

    def missed(sizes: Mapping[int, int], branches: bool = True) -> int:
        return len(trial(sizes, branches)[0])

    def mended(sizes: Mapping[int, int]) -> Mapping[int, int]:
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
    program: HostProgram, shapes: Mapping[int, Sequence[int]]
) -> list[tuple[int | None, ...]]:
    """Returns the size arguments of each step of the program; empty for steps that are no kernel.

    An argument is None if the `shapes` of the inputs do not determine it: it comes from data, or
    differs between the iterations of a loop.
    """
    registers: dict[int, int] = {}
    dims = {(port, axis): n for port, shape in shapes.items() for axis, n in enumerate(shape)}
    _missed(program.body, registers, dims)
    write_counts = Counter(i.fields["target"] for i in walk(program.body) if i.name == "let")
    return [
        tuple(registers.get(r) if write_counts[r] == 1 else None for r in step.fields["ints"])
        if step.name == "launch"
        else ()
        for step in walk(program.body)
        if step.name in STEPS
    ]


def _constants(program: HostProgram) -> set[int]:
    """Returns the registers that an instruction `const` at the top level writes last."""
    constants: dict[int, bool] = {}
    for instruction in program.body:
        if instruction.name == "let":
            constants[instruction.fields["target"]] = instruction.fields["op"] == _CONST
    return {register for register, is_constant in constants.items() if is_constant}


def _missed(body: Sequence[HostInstruction], registers: dict[int, int], dims: _Dims) -> list[_Pair]:
    """Returns the pair of numbers that each failing check compares, and sets `registers`.

    If the condition of a branch is unknown, both of its bodies are visited. Each loop is visited
    once.
    """
    pairs: list[_Pair] = []
    for instruction in body:
        fields = instruction.fields
        match instruction.name:
            case "let":
                value = let_value(fields["op"], fields["a"], fields["b"], registers, dims)
                if value is not None:
                    registers[fields["target"]] = value
            case "check" if fields["a"] in registers and fields["b"] in registers:
                a, b = registers[fields["a"]], registers[fields["b"]]
                holds = _MEANING[RELATIONS[fields["relation"]]]
                pairs += [] if holds(a, b) else [(a, b)]
            case "branch" if fields["when"] in registers:
                branch = "then" if registers[fields["when"]] else "otherwise"
                pairs += _missed(fields[branch], registers, dims)
            case _:
                for inner in instruction.bodies:
                    pairs += _missed(inner, registers, dims)
    return pairs
