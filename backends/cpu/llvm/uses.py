"""Chooses how blocks are held in registers: as single elements, or as words of neighbours."""

from collections.abc import Collection, Iterable, Sequence

from tcc.backends.cpu.llvm.contract import multiplies_words, scalar_operands
from tcc.backends.cpu.llvm.nibble_words import shift_of_nibble
from tcc.ir.expr.scalar import Cast, Scalar
from tcc.ir.index import as_int, const, free_vars, substitute
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Load,
    Stmt,
    Store,
    lanes,
    used_blocks,
    walk_statements,
)
from tcc.ir.types import BF16, F32
from tcc.target import Profile


def blocks_as_scalars(body: Sequence[Stmt]) -> frozenset[Block]:
    """Returns the blocks whose every use in `body` repeats single elements over lanes.

    It is best to load them as scalars.
    """
    scalar_only: dict[Block, bool] = {}
    for node in walk_statements(body):
        scalars = scalar_operands(node) if isinstance(node, Contract) else ()
        for block in used_blocks(node):
            scalar_only[block] = scalar_only.get(block, True) and block in scalars
    return frozenset(block for block, scalar in scalar_only.items() if scalar)


def blocks_as_words(body: Sequence[Stmt], profile: Profile) -> frozenset[Block]:
    """Returns the blocks whose elements are best held in packed 32-bit words.

    A word holds four bytes or two bf16. The blocks are loaded, or they are computed vectors of
    bf16 or of levels of four bits; then the bytes of these levels are loaded as words too. All uses
    of these blocks are contractions that multiply and add all elements of a word in one instruction
    (`multiplies_words`), or stores in scratch from which words are loaded.
    """
    statements = list(walk_statements(body))
    contractions = [
        n for n in statements if isinstance(n, Contract) and multiplies_words(n, profile)
    ]
    repeated = {block for n in contractions for block in scalar_operands(n)}
    bytes_of = _bytes_of_levels(statements)
    computed = {n.out for n in statements if isinstance(n, Compute) and n.out.dtype is BF16}
    computed |= bytes_of.keys()
    blocks = {node.out for node in statements if isinstance(node, Load)} | (computed - repeated)
    while True:
        other_operands = _operands(n for n in statements if n not in contractions)
        free = blocks - other_operands - ({n.a for n in contractions} & {n.b for n in contractions})
        remaining = [n for n in contractions if {n.a, n.b} <= free]
        if len(remaining) == len(contractions):
            words = {block for n in contractions for block in (n.a, n.b)}
            words |= {bytes_of[block] for block in words if block in bytes_of}
            return frozenset(words | (_copied_words(statements, words - repeated) & computed))
        contractions = remaining


def only_multiplied(body: Sequence[Stmt]) -> frozenset[Block]:
    """Returns the blocks of f32 rounded to bf16 of which only contractions use the elements.

    The blocks are stored in scratch, and each load from there is an operand of contractions.
    """
    statements = list(walk_statements(body))
    stores = [n for n in statements if isinstance(n, Store)]
    other_statements = [n for n in statements if not isinstance(n, Store | Contract)]
    plain = _operands(other_statements) | {n.acc for n in statements if isinstance(n, Contract)}
    all_blocks = plain | {n.block for n in stores}
    buffers = {n.buffer for n in other_statements if isinstance(n, Load) and n.out in all_blocks}
    buffers |= {n.buffer for n in stores if not n.buffer.is_local}
    plain |= {n.block for n in stores if n.buffer in buffers}
    computes = (n for n in statements if isinstance(n, Compute))
    return frozenset(n.out for n in computes if _is_rounding(n.body)) - plain


def _is_rounding(scalar: Scalar) -> bool:
    return isinstance(scalar, Cast) and scalar.dtype is BF16 and scalar.arg.dtype is F32


def _copied_words(statements: Sequence[Stmt], words: Collection[Block]) -> set[Block]:
    """Returns the blocks that are only stored in scratch from which `words` are loaded."""
    buffers = {
        n.buffer for n in statements if isinstance(n, Load) and n.out in words and n.buffer.is_local
    }
    stores = [n for n in statements if isinstance(n, Store) and n.buffer in buffers]
    plain = {n.block for n in stores if not (n.guards or n.indirect) and _stores_words(n)}
    return plain - _operands(n for n in statements if n not in stores)


def _stores_words(node: Store) -> bool:
    """Returns True if the rows of the stored block form whole words in memory.

    Then rows 2n and 2n + 1 are adjacent, and so are the words of a row.
    """
    shape = node.block.shape
    if len(shape) < 2 or shape[-2] % 2:
        return False
    row, lane = (var for index in lanes(shape)[-2:] for var in free_vars(index))
    offset = node.indices[-1]
    first, below, beside = (
        substitute(offset, {row: const(n), lane: const(m)}) for n, m in ((0, 0), (1, 0), (0, 1))
    )
    return (as_int(below - first), as_int(beside - first)) == (1, 2)


def _bytes_of_levels(statements: Sequence[Stmt]) -> dict[Block, Block]:
    """Maps each block of levels of four bits to the loaded bytes from which alone it is computed.

    Nothing else uses these bytes.
    """
    nodes = [n for n in statements if isinstance(n, Compute) and shift_of_nibble(n) is not None]
    blocks = {n.out for n in statements if isinstance(n, Load)}
    free = blocks - _operands(n for n in statements if n not in nodes)
    return {n.out: n.args[0] for n in nodes if n.args[0] in free}


def _operands(statements: Iterable[Stmt]) -> set[Block]:
    return {block for n in statements for block in used_blocks(n)}
