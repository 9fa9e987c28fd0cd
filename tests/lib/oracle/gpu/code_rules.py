"""Rules for the machine code of every kernel, as a table that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from tcc.backends.gpu.source import CompiledKernel
from tcc.ir.index import (
    Index,
    Var,
    as_int,
    divisor_of,
    free_vars,
    linear_in,
    mul,
    substitute,
    symbol,
    var_of,
)
from tcc.ir.layout import row_major_position
from tcc.ir.tile import Contract, If, Load, Stmt, Store, TileKernel, TileLoop, lanes
from tcc.ir.types import F8E4M3FN, F8E5M2, F32, FLOAT8
from tcc.target import GPUS

from tests.lib.oracle.gpu.machine_code import MachineCode

WIDE = 16  # Bytes of a lane's widest access.
# The rows that a warp group multiplies at once on Hopper, and its warps.
_GROUP_ROWS, _GROUP_WARPS = 64, 4


@dataclass(frozen=True, slots=True)
class CheckedKernel:
    """A kernel, its compiled form, and the facts of its machine code.

    `alignments` are the alignments of its buffers in bytes; `dot` is the precision of f32 matmuls.
    """

    kernel: TileKernel
    made: CompiledKernel
    code: MachineCode
    alignments: Sequence[int]
    dot: str


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a kernel's code breaks, and the reason."""

    rule: str
    found: str


def breaches(compiled: CheckedKernel) -> tuple[Breach, ...]:
    """Returns the rules that the code breaks, in the order of the table."""
    texts = ((name, rule(compiled)) for name, rule in RULES.items())
    return tuple(Breach(name, text) for name, text in texts if text)


# ---- matrix units -------------------------------------------------------------------------------


def contracts(body: Sequence[Stmt]) -> Iterator[Contract]:
    """Yields all Contracts of a body, also from loops and branches."""
    for node in statements(body):
        if isinstance(node, Contract):
            yield node


def matrix_families(compiled: CheckedKernel) -> tuple[str, ...]:
    """Returns the unique families of matrix instructions that the kernel's Contracts must use."""
    arch, warps = compiled.made.arch, compiled.made.warps
    families = (_family(c, arch, warps, compiled.dot) for c in contracts(compiled.kernel.body))
    return tuple(dict.fromkeys(f for f in families if f))


# Families by architecture and operand type; `_family` handles Hopper's warp groups.
_FAMILIES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "sm_": {"bf16": "HMMA", "f16": "HMMA", "tf32": "HMMA", "i8": "IMMA", "f8": "QMMA"},
        "gfx9": {
            "bf16": "v_mfma",
            "f16": "v_mfma",
            "tf32": "v_mfma",
            "f32": "v_mfma",
            "i8": "v_mfma",
            "f8": "v_mfma",
        },
        "gfx11": {"bf16": "v_wmma", "f16": "v_wmma", "i8": "v_wmma"},
    }
)
_GROUP_FAMILIES = MappingProxyType({"HMMA": "HGMMA", "IMMA": "IGMMA", "QMMA": "QGMMA"})


def _family(node: Contract, arch: str, warps: int, dot: str) -> str:
    """Returns the family for a Contract, or an empty text if the architecture has none."""
    operands = node.a.dtype.name
    if node.a.dtype is F32:
        operands = dot if dot != "ieee" else "f32"
    if node.a.dtype in FLOAT8:
        operands = _float8(node, arch)
    table = next((t for prefix, t in _FAMILIES.items() if arch.startswith(prefix)), {})
    family = table.get(operands, "")
    rows = prod(n for n, x in zip(node.out.shape, node.out_axes, strict=True) if x in node.a_axes)
    grouped = len(node.out_axes) == 2 and rows >= _GROUP_ROWS and warps % _GROUP_WARPS == 0
    return _GROUP_FAMILIES.get(family, family) if arch == "sm_90" and grouped else family


def _float8(node: Contract, arch: str) -> str:
    """Returns the operand type of float8 matmuls: float8 if the architecture has it, else f16."""
    gpu_kind = next((gpu.float8 for gpu in GPUS.values() if gpu.arch == arch), "")
    kind = "ocp" if node.a.dtype in (F8E4M3FN, F8E5M2) else "fnuz"
    return "f8" if gpu_kind == kind else "f16"


def _matrix_rule(compiled: CheckedKernel) -> str:
    instructions = dict(compiled.code.matrix)
    missing = [f for f in matrix_families(compiled) if not instructions.get(f)]
    return f"no {' and no '.join(missing)}" if missing else ""


# ---- private memory -----------------------------------------------------------------------------


def _private_rule(compiled: CheckedKernel) -> str:
    return f"{compiled.code.private} bytes a lane" if compiled.code.private else ""


# ---- wide accesses ------------------------------------------------------------------------------


def _wide_rule(compiled: CheckedKernel) -> str:
    """Checks only kernels without matmuls, because memory bandwidth limits them."""
    if any(True for _ in contracts(compiled.kernel.body)):
        return ""
    fitting = [type(node) for node in _wide_accesses(compiled)]
    missing = ["loads"] if Load in fitting and not compiled.code.wide_loads else []
    missing += ["stores"] if Store in fitting and not compiled.code.wide_stores else []
    return f"no {' and no '.join(missing)} of {WIDE} bytes" if missing else ""


def _wide_accesses(compiled: CheckedKernel) -> Iterator[Load | Store]:
    """Yields accesses of whole aligned rows that give every lane 16 bytes."""
    threads = compiled.made.warps * compiled.made.warp_size
    aligned = dict(zip(compiled.kernel.buffers, compiled.alignments, strict=True))
    for node, steps in positioned_accesses(compiled.kernel.body):
        shape = (node.out if isinstance(node, Load) else node.block).shape
        width = node.buffer.dtype.bytes
        if aligned[node.buffer] % WIDE or prod(shape) * width < WIDE * threads:
            continue
        many = WIDE // width
        if shape and contiguous_elements(node, len(shape) - 1, many, steps) == many:
            yield node


def contiguous_elements(
    node: Load | Store, axis: int, most: int, steps: Mapping[Var, Index]
) -> int:
    """Returns how many neighbours along an axis of a block always lie in an aligned group.

    The number is a power of two, at most `most`. `steps` has the loop variables that are multiples
    of their steps.
    """
    shape = (node.out if isinstance(node, Load) else node.block).shape
    lane = var_of(lanes(shape)[axis])
    at = row_major_position(node.indices, node.buffer.sizes)
    guards = [g for g in node.guards if lane in free_vars(g.index)]
    while most > 1:
        fits = lane is not None and shape[axis] >= most and _runs(at, lane, most, steps)
        if fits and all(
            _runs(g.index, lane, most, steps) and not divisor_of(g.extent) % most for g in guards
        ):
            break
        most //= 2
    return max(most, 1)


def _runs(index: Index, lane: Var, many: int, steps: Mapping[Var, Index]) -> bool:
    """Returns true if the last lanes are neighbours in aligned groups of `many`."""
    parts = linear_in(substitute(index, steps), lane)
    return parts is not None and as_int(parts[0]) == 1 and divisor_of(parts[1]) % many == 0


# ---- traversals --------------------------------------------------------------------------------


def statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yields all statements of a body, also from loops and branches."""
    for node in body:
        yield node
        if isinstance(node, TileLoop):
            yield from statements(node.body)
        elif isinstance(node, If):
            yield from statements((*node.then, *node.otherwise))


def positioned_accesses(
    body: Sequence[Stmt], steps: Mapping[Var, Index] = MappingProxyType({})
) -> Iterator[tuple[Load | Store, Mapping[Var, Index]]]:
    """Yields loads and stores, with the loop variables that are multiples of their steps."""
    for node in body:
        if isinstance(node, Load | Store):
            yield node, steps
        elif isinstance(node, TileLoop):
            start = as_int(node.start)
            is_aligned = start is not None and start % node.step == 0
            times = mul(symbol(f"{node.var.name}_steps"), node.step)
            yield from positioned_accesses(
                node.body, {**steps, node.var: times} if is_aligned else steps
            )
        elif isinstance(node, If):
            yield from positioned_accesses((*node.then, *node.otherwise), steps)


RULES: Mapping[str, Callable[[CheckedKernel], str]] = MappingProxyType(
    {
        "matrix units": _matrix_rule,
        "registers suffice": _private_rule,
        "16-byte accesses": _wide_rule,
    }
)
