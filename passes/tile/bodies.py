"""Computes the scalars of a stage as blocks, each scalar once.

A scalar is an expression of one element of a result.  A block is a small array with the scalar's
value at several points.  The lowerings for CPU cores and for GPUs share this code.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, argument, children, rebuild, walk
from tcc.ir.tile import Block, Blocks, Indirect
from tcc.zipped import zip_equal


class ScalarBlocks(ABC):
    """Computes blocks of scalars; `known` maps each scalar to the block that holds it already."""

    def __init__(self) -> None:
        self.known: dict[Scalar, Block] = {}

    @abstractmethod
    def read(self, node: Read) -> Block:
        """Returns the block of a read."""

    @abstractmethod
    def computed(self, raw: Scalar, args: Blocks) -> Block:
        """Returns the block of `raw`, a scalar without reads, whose arguments are the blocks
        `args`."""

    def shares(self, node: Scalar) -> bool:
        """Returns True if `node`, a scalar that occurs several times, should get a block of its
        own."""
        return isinstance(node, Apply | Cast)

    def separate_parts(self, root: Scalar) -> Sequence[Scalar]:
        """Returns the parts of `root` that should get blocks of their own before `root` is
        computed."""
        return ()

    def share(self, bodies: Sequence[Scalar]) -> None:
        """Computes the blocks of all scalars that two or more of `bodies` contain."""
        counts = Counter(node for body in bodies for node in walk(body))
        for node, count in counts.items():
            if count > 1 and self.shares(node):
                self.block(node)

    def block(self, root: Scalar) -> Block:
        """Returns a block that holds `root`, of size 1 along axes that `root` does not vary
        with."""
        for node in walk(root):
            if isinstance(node, Read) and node not in self.known:
                self.known[node] = self.read(node)
        for node in self.separate_parts(root):
            if node not in self.known:
                self.block(node)
        if root in self.known:
            return self.known[root]
        args: dict[Scalar, int] = {}

        @cache  # without the cache, shared parts would double the work at each level
        def body(node: Scalar) -> Scalar:
            if node in self.known:
                return argument(args.setdefault(node, len(args)), node.dtype)
            return rebuild(node, body)

        raw = body(root)
        out = self.known[root] = self.computed(raw, tuple(self.known[r] for r in args))
        return out

    def chosen(self, node: Read) -> Indirect:
        """Returns pairs (variable, block) for the data-dependent indices of a read.

        The variable stands for the index in the read, and the block has the values of the index.
        """
        return tuple((v, self.block(s)) for v, s in node.indirect)


def needed_by_several(bodies: Sequence[Scalar]) -> list[Scalar]:
    """Returns the scalars that two or more roots contain, operands before their users.

    The roots are `bodies` and the data-dependent indices of reads.  A scalar that occurs only
    inside another returned scalar is left out.
    """
    owners: dict[Scalar, set[Scalar]] = {body: {body} for body in bodies}
    shared = []
    for node in reversed(walk(*bodies)):
        several = len(owners[node]) > 1
        if several:
            shared.append(node)
        for child in children(node):
            child_owners = (
                {child} if isinstance(node, Read) else {node} if several else owners[node]
            )
            owners.setdefault(child, set()).update(child_owners)
    return shared[::-1]


def widened(shape: Iterable[int], blocks: Iterable[Block]) -> tuple[int, ...]:
    """Returns the shape to which a block of `shape` and all `blocks` broadcast."""
    for block in blocks:
        shape = [max(a, b) for a, b in zip_equal(shape, block.shape)]
    return tuple(shape)
