"""Scalars of a stage on blocks, each computed once: what kernels for cores and for GPUs share."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, argument, children, rebuild, walk
from tcc.ir.tile import Block, Blocks


class ScalarBlocks(ABC):
    """Blocks that hold scalars; what was computed once is `known`."""

    def __init__(self) -> None:
        self.known: dict[Scalar, Block] = {}

    @abstractmethod
    def read(self, node: Read) -> Block:
        """The block that a read gives."""

    @abstractmethod
    def computed(self, raw: Scalar, args: Blocks) -> Block:
        """The block of `raw`, whose arguments are `args` and which reads nothing."""

    def shares(self, node: Scalar) -> bool:
        """Whether a node that is needed several times is worth a block of its own."""
        return isinstance(node, Apply | Cast)

    def apart(self, root: Scalar) -> Sequence[Scalar]:
        """The parts of `root` that are worth blocks of their own, made before it."""
        return ()

    def share(self, bodies: Sequence[Scalar]) -> None:
        """Computes what several of `bodies` need, so that it is there once."""
        seen = Counter(node for body in bodies for node in walk(body))
        for node, count in seen.items():
            if count > 1 and self.shares(node):
                self.block(node)

    def block(self, root: Scalar) -> Block:
        """A block that holds `root`, with extent along the axes it varies with."""
        for node in walk(root):
            if isinstance(node, Read) and node not in self.known:
                self.known[node] = self.read(node)
        for node in self.apart(root):
            if node not in self.known:
                self.block(node)
        if root in self.known:
            return self.known[root]
        args: dict[Scalar, int] = {}

        @cache  # parts that occur many times would double the work at each level
        def body(node: Scalar) -> Scalar:
            if node in self.known:
                return argument(args.setdefault(node, len(args)), node.dtype)
            return rebuild(node, body)

        raw = body(root)
        out = self.known[root] = self.computed(raw, tuple(self.known[r] for r in args))
        return out


def needed_by_several(bodies: Sequence[Scalar]) -> list[Scalar]:
    """The scalars that more than one of `bodies` and of the indices of their reads is computed from
    directly, operands before users."""
    owners: dict[Scalar, set[Scalar]] = {body: {body} for body in bodies}
    shared = []
    for node in reversed(walk(*bodies)):
        several = len(owners[node]) > 1
        if several:
            shared.append(node)
        for child in children(node):
            own = {child} if isinstance(node, Read) else {node} if several else owners[node]
            owners.setdefault(child, set()).update(own)
    return shared[::-1]


def widened(shape: Iterable[int], blocks: Iterable[Block]) -> tuple[int, ...]:
    """`shape` with the extents of blocks that broadcast to it."""
    for block in blocks:
        shape = [max(a, b) for a, b in zip(shape, block.shape, strict=True)]
    return tuple(shape)
