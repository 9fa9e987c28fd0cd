"""The verifier of tile kernels: every backend may rely on these properties.

A block is defined once, before its uses, and is in scope there.  Shapes and element types agree in
every statement.  Indices use variables in scope only.  A tile stores to OUTPUT and LOCAL buffers
only, and LOCAL buffers have static sizes.  `tcc.ir.tile.access` proves that accesses are inside
their buffers; claims without a proof are returned.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import assert_never

from tcc.errors import require_none
from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Arg, IndexValue, Read, Scalar, walk
from tcc.ir.index import Index, Indices, Var, as_int, free_vars, of_atom
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    MemorySpace,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileKernel,
    TileLoop,
    defined_blocks,
    lanes,
)
from tcc.ir.tile.access import IndexFacts
from tcc.ir.tile.overwrite import overwrites
from tcc.ir.tile.text import guards_text
from tcc.ir.types import I8, I32, U8
from tcc.zipped import zip_equal


def verify_kernel(kernel: TileKernel) -> tuple[str, ...]:
    """Returns the unproved claims about accesses and loops, one sentence each.

    Raises `InternalError` whose `why` lists every problem, one on each line.
    """
    verifier = _Verifier(kernel)
    verifier.run()
    require_none("tile kernel is not well formed", verifier.problems)
    return tuple(verifier.unproved)


class _Verifier:
    """Collects the problems of a kernel.

    `_visible` are the blocks in scope, and `_defined` all blocks defined so far.
    """

    def __init__(self, kernel: TileKernel) -> None:
        self.problems: list[str] = []
        self.unproved: list[str] = []
        self._kernel = kernel
        self._buffers = {*kernel.buffers, *kernel.locals}
        self._defined: set[Block] = set()
        self._visible: set[Block] = set()
        self._vars: set[Var] = {*kernel.sizes, *kernel.axes}
        self._facts = IndexFacts()

    def run(self) -> None:
        kernel = self._kernel
        for buffer in kernel.buffers:
            self._ask(not buffer.is_local, f"buffer {buffer.name} is local")
        for buffer in kernel.locals:
            self._ask(buffer.is_local, f"buffer {buffer.name} is not local")
            static = all(as_int(size) is not None for size in buffer.sizes)
            self._ask(static, f"local buffer {buffer.name} has a size that is not static")
        self._ask(len(self._buffers) == len((*kernel.buffers, *kernel.locals)), "a buffer is twice")
        for var in kernel.sizes:
            self._ask(var.extent is None, f"{var.key} is no size")
        for var in kernel.axes:
            self._ask(var.extent is not None, f"axis {var.key} is no iterator")
        for operand, result in kernel.in_place:
            buffer_names = f"{kernel.buffers[operand].name} and {kernel.buffers[result].name}"
            scopes = (kernel.buffers[operand].scope, kernel.buffers[result].scope)
            self._ask(
                scopes == (MemorySpace.INPUT, MemorySpace.OUTPUT),
                f"{buffer_names} are no operand and result",
            )
            fits = overwrites(kernel, operand, result)
            self._ask(
                fits, f"{buffer_names} are one memory, and an element is read that may be replaced"
            )
        self._body(kernel.body)

    def _ask(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    # ---- scopes ----------------------------------------------------------------------------

    def _body(self, body: Sequence[Stmt]) -> None:
        for node in body:
            self._statement(node)
            if not isinstance(
                node, TileLoop
            ):  # `_loop` defines the blocks of a loop, some in its body's scope
                self._define(*defined_blocks(node))

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Opens a scope: definitions inside the `with` statement are not visible after it."""
        visible, variables, facts = set(self._visible), set(self._vars), self._facts
        yield
        self._visible, self._vars, self._facts = visible, variables, facts

    def _define(self, *blocks: Block) -> None:
        for block in blocks:
            self._ask(block not in self._defined, f"{_name(block)} is defined twice")
            self._ask(all(n > 0 for n in block.shape), f"{_name(block)} has an empty axis")
            self._defined.add(block)
            self._visible.add(block)

    def _use(self, *blocks: Block) -> None:
        for block in blocks:
            self._ask(block in self._visible, f"{_name(block)} is used where it is not defined")

    def _indices(self, where: str, indices: Iterable[Index], extra: Iterable[Index] = ()) -> None:
        in_scope = {*self._vars, *(v for i in extra for v in free_vars(i))}
        for var in dict.fromkeys(v for i in indices for v in free_vars(i) if v not in in_scope):
            self.problems.append(f"{where} uses {var.key}, which is not in sight")

    # ---- statements --------------------------------------------------------------------------

    def _statement(self, node: Stmt) -> None:
        match node:
            case Load():
                self._access(node, f"load of {_name(node.out)}", node.out)
            case Store():
                self._use(node.block)
                self._access(node, f"store of {_name(node.block)}", node.block)
                read_only = node.buffer.scope is MemorySpace.INPUT
                self._ask(not read_only, f"{node.buffer.name} is stored to, and is an input")
            case Prefetch():
                self._prefetch(node)
            case Compute():
                self._compute(node)
            case Contract():
                self._contract(node)
            case Reduce():
                self._reduce(node)
            case Broadcast():
                self._use(node.block)
                self._spreads(node.block, node.out)
                self._same_type(node.out, node.block)
            case Relayout():
                self._relayout(node)
            case TileLoop():
                self._loop(node)
            case If():
                self._if(node)
            case Sync():
                pass
            case _:
                assert_never(node)

    def _access(self, node: Load | Store, where: str, block: Block) -> None:
        buffer = node.buffer
        self._ask(block.dtype is buffer.dtype, f"{where}: {buffer.name} holds {buffer.dtype.name}")
        for var, index_block in node.indirect:
            self._spreads(index_block, block)
            self._ask(index_block.dtype.is_integer, f"{where}: {var.key} is bound to no integers")
        guarded = (i for g in node.guards for i in (g.index, g.extent))
        if self._place(node, where, lanes(block.shape), guarded):
            loose = {v for v, _ in node.indirect}
            for index, size in zip_equal(node.indices, buffer.sizes):
                if not self._facts.inside(index, size, node.guards, loose):
                    claim = f"{where}: 0 <= {index.key} < {size.key}{guards_text(node)}"
                    self.unproved.append(claim)

    def _prefetch(self, node: Prefetch) -> None:
        where = f"prefetch of {node.buffer.name}"
        self._place(node, where)
        self._ask(node.level in (1, 2), f"{where}: there is no level {node.level}")
        for var, block in node.indirect:
            one = block.dtype.is_integer and _count(block) == 1
            self._ask(one, f"{where}: {var.key} is bound to {_name(block)}, not to one integer")

    def _place(
        self,
        node: Load | Store | Prefetch,
        where: str,
        lane_variables: Indices = (),
        guarded: Iterable[Index] = (),
    ) -> bool:
        """Checks that the buffer, blocks and variables of an access are in scope.

        `where` describes the statement in messages. The indices may use `lane_variables`; `guarded`
        are the indices and extents of the guards. Returns True if there is an index for each axis
        of the buffer.
        """
        buffer = node.buffer
        self._ask(buffer in self._buffers, f"{where}: {buffer.name} is no buffer of the kernel")
        fits = len(node.indices) == len(buffer.sizes)
        self._ask(fits, f"{where}: {len(node.indices)} indices for {len(buffer.sizes)} axes")
        self._use(*(block for _, block in node.indirect))
        bound = (of_atom(var) for var, _ in node.indirect)
        self._indices(where, (*node.indices, *guarded), (*lane_variables, *bound))
        return fits

    def _spreads(self, block: Block, out: Block) -> None:
        fits = len(block.shape) == len(out.shape) and all(
            a in (1, b) for a, b in zip_equal(block.shape, out.shape)
        )
        self._ask(fits, f"{_name(block)} does not spread to {_name(out)}")

    def _same_type(self, out: Block, *blocks: Block) -> None:
        is_equal = all(b.dtype is out.dtype for b in blocks)
        self._ask(is_equal, f"{_name(out)} is made of another element type")

    def _compute(self, node: Compute) -> None:
        where = f"compute of {_name(node.out)}"
        self._use(*node.args)
        for block in node.args:
            self._spreads(block, node.out)
        self._ask(node.body.dtype is node.out.dtype, f"{where}: gives {node.body.dtype.name}")
        for scalar in walk(node.body):
            self._scalar(scalar, node, where)

    def _scalar(self, scalar: Scalar, node: Compute, where: str) -> None:
        match scalar:
            case Read():
                self.problems.append(f"{where}: holds a read")
            case Arg():
                is_bound = scalar.number < len(node.args)
                fits = is_bound and node.args[scalar.number].dtype is scalar.dtype
                self._ask(fits, f"{where}: arg({scalar.number}) is not given")
            case IndexValue():
                self._indices(where, (scalar.index,), lanes(node.out.shape))

    def _contract(self, node: Contract) -> None:
        where = f"contract of {_name(node.out)}"
        self._use(node.acc, node.a, node.b)
        sizes: dict[str, int] = {}
        for block, axes in (
            (node.out, node.out_axes), (node.a, node.a_axes), (node.b, node.b_axes)
        ):  # fmt: skip
            if len(axes) != len(block.shape) or len(set(axes)) != len(axes):
                self.problems.append(f"{where}: labels {axes} do not fit {_name(block)}")
                continue
            for label, size in zip_equal(axes, block.shape):
                is_equal = sizes.setdefault(label, size) == size
                self._ask(is_equal, f"{where}: axes {label} differ in size")
        a, b, out = set(node.a_axes), set(node.b_axes), set(node.out_axes)
        self._ask(out <= a | b, f"{where}: an axis of the result is in no operand")
        self._ask((a ^ b) <= out, f"{where}: an axis of one operand alone is not in the result")
        self._ask(node.acc.shape == node.out.shape, f"{where}: {_name(node.acc)} has another shape")
        self._same_type(node.out, node.acc)
        if node.acc.dtype is not I32 or not {node.a.dtype, node.b.dtype} <= {I8, U8}:
            self._same_type(node.a, node.b)

    def _reduce(self, node: Reduce) -> None:
        where = f"reduction to {_name(node.outs[0])}"
        self._use(*node.blocks)
        monoid = MONOIDS.get(node.monoid)
        counts = {len(node.outs), len(node.blocks)}
        fits = monoid is not None and counts == {monoid.components}
        self._ask(fits, f"{where}: {node.monoid} does not combine {len(node.blocks)} blocks")
        for out, block in zip(node.outs, node.blocks, strict=False):
            axes = all(0 <= n < len(block.shape) for n in node.axes)
            shape = tuple(1 if n in node.axes else size for n, size in enumerate(block.shape))
            due = axes and len(set(node.axes)) == len(node.axes) and out.shape == shape
            self._ask(due, f"{where}: {_name(block)} along {node.axes} is no {_name(out)}")
            self._same_type(out, block)
        self._ask(len({b.shape for b in node.blocks}) == 1, f"{where}: shapes differ")

    def _relayout(self, node: Relayout) -> None:
        self._use(node.block)
        self._same_type(node.out, node.block)
        rank = len(node.block.shape)
        fits = sorted(node.order) == list(range(rank)) and _count(node.out) == _count(node.block)
        self._ask(fits, f"{_name(node.block)} is not laid out as {_name(node.out)}")

    # ---- control ---------------------------------------------------------------------------------

    def _loop(self, node: TileLoop) -> None:
        where = f"loop {node.var.key}"
        self._use(*node.inits)
        self._indices(where, (node.start, node.stop))
        self._ask(node.step > 0, f"{where}: the step is not positive")
        self._ask(node.var not in self._vars, f"{where}: the variable is in use")
        parts = (node.inits, node.carried, node.yields, node.results)
        if len({len(p) for p in parts}) == 1:
            for group in zip_equal(*parts):
                kinds = {(b.dtype.name, b.shape) for b in group}
                self._ask(len(kinds) == 1, f"{where}: {_name(group[1])} changes its type")
        else:
            self.problems.append(f"{where}: carries {[len(p) for p in parts]} blocks")
        self.unproved += (f"{where}: {c}" for c in self._facts.loop_claims(node))
        with self._scope():
            self._facts = self._facts.in_loop(node)
            self._vars.add(node.var)
            self._define(*node.carried)
            self._body(node.body)
            self._use(*node.yields)
        self._define(*node.results)

    def _if(self, node: If) -> None:
        self._indices("a condition", (node.lhs, node.rhs))
        for holds, body in ((True, node.then), (False, node.otherwise)):
            with self._scope():
                self._facts = self._facts.in_branch(node, holds)
                self._body(body)


def _name(block: Block) -> str:
    return f"%{block.name}:{block.dtype.name}[{','.join(map(str, block.shape))}]"


def _count(block: Block) -> int:
    return prod(block.shape)
