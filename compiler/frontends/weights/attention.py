"""Attention of a layer: rotated queries and keys, and caches of the keys and values of all rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcc.cached import cached_method
from tcc.frontends.emit import concat, constant, counted, emit, size_scalar, stack
from tcc.frontends.operand import Operand
from tcc.frontends.weights.config import Config
from tcc.frontends.weights.rotary import Rotary
from tcc.frontends.weights.tensors import Tensors
from tcc.ir.index import Index
from tcc.ir.types import F32
from tcc.zipped import zip_equal


@dataclass(frozen=True, eq=False)
class DecoderRun:
    """The values that all layers of a run share.

    The run has `seq` tokens of each of `batch` texts, which are rows `[batch * seq, ...]`, behind
    `past` rows of the caches. Layers share `turns`, f32 `[rows, 1, dims // 2]`, and `mask`, bool
    `[batch, 1, seq, past + seq]`.

    A batch has `lengths`, i64 `[batch]`: the tokens of each text in the caches, at most `past`. Its
    `ends`, of the same form, count the tokens of the run too. Both are None for one text, of which
    the caches hold `past` tokens.
    """

    config: Config
    tensors: Tensors
    past: Index
    seq: Index
    batch: Index
    lengths: Operand | None
    ends: Operand | None

    @property
    def rows(self) -> Index:
        return self.batch * self.seq

    def positions(self) -> Operand:
        """Returns the positions of the rows, i64 `[rows]`."""
        if not self.lengths:
            return counted(self.seq) + size_scalar(self.past)
        return (self.lengths.unsqueeze(1) + counted(self.seq)).flat()

    @cached_method
    def turns(self, rotary: Rotary) -> Sequence[Operand]:
        """Returns cos and sin of the angles of the rows, times the magnitude."""
        frequencies = constant(rotary.frequencies)
        positions = self.positions().cast(F32).reshape((self.rows, 1, 1))
        if rotary.long is not None:
            ends = self.ends or size_scalar(self.past + self.seq)
            if self.ends:
                # Each text decides for its own rows.
                ends = ends.unsqueeze(1).expand((self.batch, self.seq)).reshape((self.rows, 1))
                ends = ends.unsqueeze(2)
            frequencies = (ends > rotary.limit).select(constant(rotary.long), frequencies)
        angle = positions * frequencies
        turns = [angle.cos(), angle.sin()]
        if rotary.magnitude != 1:
            turns = [turn * rotary.magnitude for turn in turns]
        return turns

    @cached_method
    def mask(self, window: int) -> Operand | None:
        """Returns the keys that a row sees: those of its own text, and not behind its window.

        Returns None if the order of the rows says it all.
        """
        if not window and not self.lengths:
            return None
        count = self.past + self.seq
        keys, rows = counted(count).reshape((1, count)), self.positions().unsqueeze(1)
        parts = [keys > rows - window] if window else []
        parts += [] if self.lengths is None else [keys <= rows]
        is_visible = parts[0] & parts[1] if len(parts) > 1 else parts[0]
        return is_visible.reshape((self.batch, 1, self.seq, count))

    def appended(self, cache: Operand, rows: Operand) -> Operand:
        """Returns a cache with the rows of the run, `[rows, key heads, head width]`.

        A batch writes the rows of each text behind its own.
        """
        if not self.lengths:
            return concat([cache, rows], 0)
        texts = counted(self.batch).unsqueeze(1).expand((self.batch, self.seq)).flat()
        return cache.scatter_nd(stack([self.positions(), texts], 1), rows)


def attention(
    context: DecoderRun, x: Operand, layer: int, caches: Sequence[Operand]
) -> tuple[Operand, list[Operand]]:
    """Returns the mixed values of normalised rows `x` `[rows, width]`, and the two longer caches.

    The mixed values are `[rows, heads * head_width]`. The caches have keys and values, `[past, key
    heads, head_width]`, or `[past + seq, batch, key heads, head_width]` in a batch.
    """
    config = context.config
    count, width = config.heads, config.head_width
    heads = _projections(context, x, layer)
    window = config.windows[layer]
    rotary = config.local if window else config.rotary
    for n, part in enumerate("qk"):
        if config.family.head_norms:
            name = f"blk.{layer}.attn_{part}_norm.weight"
            weights = context.tensors.vector(name, width, config.family.norm_offset)
            heads[n] = heads[n].rms_normalization(weights, axis=2, epsilon=config.epsilon)
        if rotary is not None:
            # Each row is a batch of one position.
            rows, turns = heads[n].unsqueeze(2), context.turns(rotary)
            rows = rows.rotary_embedding(*turns, interleaved=False, rotary_dim=rotary.dims)
            heads[n] = rows.squeeze((2,))
    longer = [context.appended(cache, rows) for cache, rows in zip_equal(caches, heads[1:])]
    if not context.lengths:
        operands = [x.transpose((1, 0, 2)).unsqueeze(0) for x in (heads[0], *longer)]
    else:
        query = heads[0].reshape((context.batch, context.seq, count, width))
        operands = [query.transpose((0, 2, 1, 3)), *(x.transpose((1, 2, 0, 3)) for x in longer)]
    mixed = emit(
        "attention",
        *operands,
        context.mask(window),
        scale=config.scale,
        is_causal=True,
        softcap=config.score_cap,
        offset=context.past,
    )
    return mixed.transpose((0, 2, 1, 3)).reshape((context.rows, count * width)), longer


def _projections(context: DecoderRun, x: Operand, layer: int) -> list[Operand]:
    """Returns queries, keys and values, `[rows, heads, head_width]`.

    Their matrices may be one tensor.
    """
    config, tensors, start = context.config, context.tensors, f"blk.{layer}.attn_"
    many, few, width = config.heads, config.key_heads, config.head_width
    packed = None
    if f"{start}qkv.weight" in tensors:
        packed = tensors.matmul(x, f"{start}qkv", (many + 2 * few) * width)
    parts = []
    for part, first, count in (("q", 0, many), ("k", many, few), ("v", many + few, few)):
        if not packed:
            rows = tensors.matmul(x, start + part, count * width)
        else:
            rows = packed.slice_axis(1, first * width, count * width)
        parts.append(rows.reshape((context.rows, count, width)))
    return parts
