"""Attention of a layer: rotated queries and keys, and caches of the keys and values of all rows."""

from collections.abc import Sequence

from tcc.frontends.emit import concat, constant, counted, size_scalar
from tcc.frontends.operand import Operand
from tcc.frontends.weights.config import Config
from tcc.frontends.weights.rotary import Rotary
from tcc.frontends.weights.tensors import Tensors
from tcc.frozen import entity
from tcc.ir.index import Index
from tcc.ir.types import F32


@entity
class Run:
    """What all layers of a run share.

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
            turns = angle.cos(), angle.sin()
            scaled = rotary.magnitude != 1
            self.angles[rotary] = [turn * rotary.magnitude for turn in turns] if scaled else turns
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
    run: Run, x: Operand, layer: int, caches: Sequence[Operand]
) -> tuple[Operand, tuple[Operand, Operand]]:
    """Returns the mixed values of normalised rows `x` `[seq, width]`, and the two longer caches.

    The mixed values are `[seq, heads * head_width]`. The caches have keys and values, `[past, key
    heads, head_width]`.
    """
    config, past = run.config, run.past
    q, k, v = _projections(run, x, layer)
    if config.family.head_norms:
        q, k = (_head_norm(run, x, f"blk.{layer}.attn_{n}_norm.weight") for n, x in (("q", q), ("k", k)))
    window = config.windows[layer]
    rotary = config.local if window else config.rotary
    if rotary is not None:
        q, k = (_rotated(run, x, rotary) for x in (q, k))
    keys, values = (concat([cache, rows], 0) for cache, rows in zip(caches, (k, v), strict=True))
    heads = (x.transpose((1, 0, 2)).unsqueeze(0) for x in (q, keys, values))
    mixed = next(heads).attention(
        *heads,
        run.mask(window) if window else None,
        scale=config.scale,
        is_causal=True,
        softcap=config.score_cap,
        offset=past,
    )
    width = config.heads * config.head_width
    return mixed.transpose((0, 2, 1, 3)).reshape((run.seq, width)), (keys, values)


def _projections(run: Run, x: Operand, layer: int) -> list[Operand]:
    """Returns queries, keys and values, `[seq, heads, head_width]`.

    Their matrices may be one tensor.
    """
    config, tensors = run.config, run.tensors
    counts = (config.heads, config.key_heads, config.key_heads)
    widths = [count * config.head_width for count in counts]
    fused = f"blk.{layer}.attn_qkv"
    if f"{fused}.weight" in tensors:
        packed = tensors.matmul(x, fused, sum(widths))
        starts = (0, widths[0], widths[0] + widths[1])
        parts = [packed.slice_axis(1, at, n) for at, n in zip(starts, widths, strict=True)]
    else:
        names = (f"blk.{layer}.attn_{part}" for part in "qkv")
        parts = [tensors.matmul(x, name, n) for name, n in zip(names, widths, strict=True)]
    return [
        part.reshape((run.seq, count, config.head_width))
        for part, count in zip(parts, counts, strict=True)
    ]


def _head_norm(run: Run, x: Operand, name: str) -> Operand:
    config = run.config
    weights = run.tensors.norm(name, config.head_width)
    return x.rms_normalization(weights, axis=2, epsilon=config.epsilon)


def _rotated(run: Run, x: Operand, rotary: Rotary) -> Operand:
    """Rotates heads `[seq, heads, head_width]`; each row is a batch of one position."""
    turned = x.unsqueeze(2).rotary_embedding(
        *run.turns(rotary), interleaved=False, rotary_dim=rotary.dims
    )
    return turned.reshape(x.shape)
