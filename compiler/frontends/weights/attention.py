"""Attention of a layer: rotated queries and keys, and caches of the keys and values of all rows."""

from collections.abc import Sequence

from tcc.frontends.aligned import aligned
from tcc.frontends.emit import concat, constant, counted, emit, size_scalar
from tcc.frontends.operand import Operand
from tcc.frontends.weights.config import Config
from tcc.frontends.weights.rotary import Rotary
from tcc.frontends.weights.tensors import Tensors
from tcc.frozen import entity
from tcc.ir.index import Index
from tcc.ir.types import F32


@entity
class DecoderRun:
    """The values that all layers of a run share.

    The run has `seq` rows behind `past` rows of the caches. `angles` holds cos and sin, f32 `[seq,
    1, dims // 2]`, and `masks` the visible keys, bool `[1, 1, seq, past + seq]`, by window.
    """

    config: Config
    tensors: Tensors
    past: Index
    seq: Index
    angles: dict[Rotary, Sequence[Operand]]
    masks: dict[int, Operand]

    def positions(self) -> Operand:
        """Returns the positions of the rows, i64 `[seq]`."""
        return counted(self.seq) + size_scalar(self.past)

    def turns(self, rotary: Rotary) -> Sequence[Operand]:
        """Returns cos and sin of the angles of the rows, times the magnitude."""
        if rotary not in self.angles:
            frequencies = constant(rotary.frequencies)
            if rotary.long is not None:
                is_long = size_scalar(self.past + self.seq) > rotary.limit
                frequencies = is_long.select(constant(rotary.long), frequencies)
            angle = self.positions().cast(F32).reshape((self.seq, 1, 1)) * frequencies
            turns = [angle.cos(), angle.sin()]
            if rotary.magnitude != 1:
                turns = [turn * rotary.magnitude for turn in turns]
            self.angles[rotary] = turns
        return self.angles[rotary]

    def mask(self, window: int) -> Operand:
        """Returns the keys that are not behind the window of each row."""
        if window not in self.masks:
            keys = self.past + self.seq
            first = self.positions().reshape((self.seq, 1)) - window
            is_near = counted(keys).reshape((1, keys)) > first
            self.masks[window] = is_near.reshape((1, 1, self.seq, keys))
        return self.masks[window]


def attention(
    context: DecoderRun, x: Operand, layer: int, caches: Sequence[Operand]
) -> tuple[Operand, list[Operand]]:
    """Returns the mixed values of normalised rows `x` `[seq, width]`, and the two longer caches.

    The mixed values are `[seq, heads * head_width]`. The caches have keys and values, `[past, key
    heads, head_width]`.
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
    heads[1:] = (concat([cache, rows], 0) for cache, rows in aligned(caches, heads[1:]))
    mixed = emit(
        "attention",
        *(x.transpose((1, 0, 2)).unsqueeze(0) for x in heads),
        context.mask(window) if window else None,
        scale=config.scale,
        is_causal=True,
        softcap=config.score_cap,
        offset=context.past,
    )
    return mixed.transpose((0, 2, 1, 3)).reshape((context.seq, count * width)), heads[1:]


def _projections(context: DecoderRun, x: Operand, layer: int) -> list[Operand]:
    """Returns queries, keys and values, `[seq, heads, head_width]`.

    Their matrices may be one tensor.
    """
    config, tensors, start = context.config, context.tensors, f"blk.{layer}.attn_"
    many, few, width = config.heads, config.key_heads, config.head_width
    packed = None
    if f"{start}qkv.weight" in tensors:
        packed = tensors.matmul(x, f"{start}qkv", (many + 2 * few) * width)
    parts = []
    for part, first, count in (("q", 0, many), ("k", many, few), ("v", many + few, few)):
        if packed is None:
            rows = tensors.matmul(x, start + part, count * width)
        else:
            rows = packed.slice_axis(1, first * width, count * width)
        parts.append(rows.reshape((context.seq, count, width)))
    return parts
