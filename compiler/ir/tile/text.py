"""The text of tile kernels, which tests parse back.

The types of results stand before the operation that computes them, so that the lanes l0, l1, ...
are known where they are used.  `tcc.ir.tile` shows an example.
"""

from collections.abc import Sequence
from typing import assert_never

from tcc.ir.graph.text import UniqueNames, body_text, iterator_text, number, size_line
from tcc.ir.index import free_vars
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileKernel,
    TileLoop,
    inner_bodies,
)
from tcc.zipped import zip_equal


def kernel_text(kernel: TileKernel) -> str:
    """Returns the text of a kernel, after lines for its size symbols; ends with a newline."""
    sizes = dict.fromkeys(kernel.sizes)
    for buffer in kernel.buffers:
        sizes.update({v: None for n in buffer.sizes for v in free_vars(n) if v.extent is None})
    return "\n".join([*map(size_line, sizes), *_Printer().kernel(kernel)]) + "\n"


class _Printer:
    def __init__(self) -> None:
        self._name = UniqueNames()

    def _typed(self, block: Block) -> str:
        return f"{self._name(block)}: {block.dtype.name}[{','.join(map(str, block.shape))}]"

    def _labelled(self, block: Block, axes: Sequence[str]) -> str:
        return f"{self._name(block)}[{','.join(axes)}]"

    def _blocks(self, blocks: Sequence[Block]) -> str:
        return ", ".join(map(self._name, blocks))

    def kernel(self, kernel: TileKernel) -> list[str]:
        sizes = ", ".join(v.key for v in kernel.sizes)
        axes = ", ".join(map(iterator_text, kernel.axes))
        lines = [f"kernel({sizes}) parallel({axes}) {{"]
        for buffer in (*kernel.buffers, *kernel.locals):
            shape = ",".join(n.key for n in buffer.sizes)
            kind = f"{buffer.scope.value} {self._name(buffer)}"
            lines.append(f"  {kind} : {buffer.dtype.name}[{shape}] align {buffer.align}")
        for pair in kernel.in_place:
            operand, result = (self._name(kernel.buffers[n]) for n in pair)
            lines.append(f"  place {result} over {operand}")
        lines += (f"  nontemporal {self._name(kernel.buffers[n])}" for n in kernel.nontemporal)
        return [*lines, *self._body(kernel.body, "  "), "}"]

    def _body(self, body: Sequence[Stmt], indent: str) -> list[str]:
        return [line for node in body for line in self._statement(node, indent)]

    def _statement(self, node: Stmt, indent: str) -> list[str]:
        match node:
            case Store():
                line = f"store {self._name(node.block)} to {self._place(node)}"
                return [indent + line + guards_text(node)]
            case Prefetch():
                purpose = " to write" if node.write else ""
                return [f"{indent}prefetch {self._place(node)} level {node.level}{purpose}"]
            case TileLoop():
                return self._loop(node, indent)
            case If():
                head = f"{indent}if {node.lhs.key} < {node.rhs.key} {{"
                then, otherwise = (self._body(b, indent + "  ") for b in inner_bodies(node))
                middle = [f"{indent}}} else {{"] if otherwise else []
                return [head, *then, *middle, *otherwise, indent + "}"]
            case Sync():
                return [f"{indent}sync"]
            case Compute():
                lets, text = body_text((node.body,))
                head = f"{indent}{self._typed(node.out)} = compute({self._blocks(node.args)})"
                inner = [f"{indent}    {line}" for line in (*lets, text)]
                return [head, *inner] if lets else [f"{head} {text}"]
            case Reduce():
                outs = ", ".join(map(self._typed, node.outs))
                axes = ", ".join(map(str, node.axes))
                text = f"reduce {node.monoid}({self._blocks(node.blocks)}) over ({axes})"
                return [f"{indent}{outs} = {text}"]
            case Load():
                plain = node.fill == 0 and type(node.fill) is int
                fill = "" if plain else f" fill {number(node.fill)}"
                value = f"load {self._place(node)}{guards_text(node)}{fill}"
            case Contract():
                a, b = self._labelled(node.a, node.a_axes), self._labelled(node.b, node.b_axes)
                value = f"contract {a} * {b} + {self._labelled(node.acc, node.out_axes)}"
            case Broadcast():
                value = f"broadcast {self._name(node.block)}"
            case Relayout():
                order = ", ".join(map(str, node.order))
                value = f"relayout {self._name(node.block)} order ({order})"
            case _:
                assert_never(node)
        return [f"{indent}{self._typed(node.out)} = {value}"]

    def _place(self, node: Load | Store | Prefetch) -> str:
        indices = ", ".join(i.key for i in node.indices)
        bindings = (f" | {iterator_text(v)} = {self._name(b)}" for v, b in node.indirect)
        return f"{self._name(node.buffer)}[{indices}{''.join(bindings)}]"

    def _loop(self, node: TileLoop, indent: str) -> list[str]:
        results = ", ".join(map(self._typed, node.results))
        pairs = zip_equal(node.carried, node.inits)
        carried = ", ".join(f"{self._typed(c)} = {self._name(i)}" for c, i in pairs)
        head = f"for {iterator_text(node.var)} in {node.start.key}..{node.stop.key}"
        lines = [
            indent + (f"{results} = " if results else "") + f"{head} step {node.step}"
            + (f" carry ({carried})" if carried else "") + " {"
        ]  # fmt: skip
        lines += self._body(node.body, indent + "  ")
        if node.yields:
            lines.append(f"{indent}  yield {self._blocks(node.yields)}")
        return [*lines, indent + "}"]


def guards_text(node: Load | Store) -> str:
    """Returns ` where 0 <= i < n` for the guards of an access; empty without guards."""
    parts = ", ".join(f"0 <= {g.index.key} < {g.extent.key}" for g in node.guards)
    return f" where {parts}" if parts else ""
