"""Lists the families of small graphs and their sizes.

The list was committed before any of its graphs was timed. A family or a size may be added, but is
never dropped or exchanged because of its ratio. `scripts/results/subgraphs-list.txt` shows the
list, and a test compares the two. Sizes that no paper states (faces, nodes, pixels) are our choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from subgraph import attention, convolutions, dense, irregular, norms, pointwise
from subgraph.writer import DrawnGraph, live_bytes

Sizes = Mapping[str, int]

# A graph is not timed if it needs more bytes than this when its nodes run one by one.
MOST_BYTES = 8 * 10**9
# The number of matmuls in the sweep, drawn from all M, K, N from 1 to 70. The matmuls of a smaller
# sweep are the first ones of a larger sweep.
SWEEP = 64
_LARGEST = 70
_SEED = 20


@dataclass(frozen=True)
class Family:
    """Graphs that the function `build` returns; `sizes` has its arguments for each graph."""

    name: str
    build: Callable[..., DrawnGraph]
    sizes: tuple[Sizes, ...]


@dataclass(frozen=True)
class SubgraphCase:
    """A graph to time: the graph `build(**sizes)` of a family."""

    family: str
    build: Callable[..., DrawnGraph]
    sizes: Sizes

    @property
    def name(self) -> str:
        return ", ".join((self.family, *(f"{k} {v}" for k, v in self.sizes.items())))

    @property
    def file(self) -> str:
        """Returns the name as a valid file name, without suffix."""
        return "".join(c if c.isalnum() else "_" for c in self.name.replace(", ", "-"))

    @cached_property
    def graph(self) -> DrawnGraph:
        return self.build(**self.sizes)

    @cached_property
    def bytes(self) -> int:
        """Returns the most bytes that are live at once if the nodes run one by one."""
        return live_bytes(self.graph)

    @property
    def fits(self) -> bool:
        return self.bytes <= MOST_BYTES


def grid(**axes: int | tuple[int, ...]) -> tuple[Sizes, ...]:
    """Returns all combinations of the arguments' values; the last argument varies fastest.

    Example: grid(batch=(1, 8), width=64) is ({batch: 1, width: 64}, {batch: 8, width: 64}).
    """
    choices = [value if isinstance(value, tuple) else (value,) for value in axes.values()]
    return tuple(dict(zip(axes, combination, strict=True)) for combination in product(*choices))


def rows(**other_axes: int) -> tuple[Sizes, ...]:
    """Returns sizes for each batch of 1 and 8 and each length of 17, 512, 1500 and 4096.

    Each of them also has the arguments `other_axes`.
    """
    return grid(batch=(1, 8), length=(17, 512, 1500, 4096), **other_axes)


def images(*shapes: tuple[int, int], **other_axes: int | tuple[int, ...]) -> tuple[Sizes, ...]:
    """Returns sizes for each batch of 1 and 8 and each image (channels, size) in `shapes`.

    The axes `other_axes` are added to the sizes. An axis with several values gives several sizes.
    """
    return tuple(
        sizes
        for batch, (channels, size) in product((1, 8), shapes)
        for sizes in grid(batch=batch, channels=channels, size=size, **other_axes)
    )


_VOCABULARIES = (32_000, 50_257, 128_256, 262_144, 1_000_000)
_FEW = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16)
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
_SHUFFLED = ((28, 24), (28, 58), (14, 116), (7, 232))

FAMILIES: tuple[Family, ...] = (
    # families of attention
    Family("normalised keys (Swin v2)", attention.normalised_keys,
           (*rows(), *grid(batch=(64,), length=(64,)), *grid(batch=(16,), length=(256,)))),
    Family("QK-norm, rotary (Gemma 3)", attention.qk_norm_gemma3, rows()),
    Family("QK-norm, rotary (Qwen 3)", attention.qk_norm_qwen3, rows()),
    Family("tanh cap (Gemma 2)", attention.tanh_cap, rows()),
    Family("ALiBi (BLOOM)", attention.alibi, rows()),
    Family("causal (GPT-2)", attention.causal, rows()),
    Family("sliding window (Mistral)", attention.sliding_window, rows()),
    Family("MHA (oneDNN)", attention.mha, rows()),
    Family("self attention (Whisper tiny)", attention.self_attention, rows()),
    Family("GQA decode, cache grows", attention.decode_appending, rows()),
    Family("GQA decode, cache read", attention.decode_reading, rows()),
    Family("band attention (Longformer)", attention.longformer,
           (*rows(), *grid(batch=1, length=10_000))),
    Family("q k^T", attention.scores, rows()),
    Family("q k, k transposed before", attention.scores_stored, rows()),
    # families of norms and softmaxes
    Family("LayerNorm", norms.layer_norm, (*rows(), *grid(batch=1, length=197))),
    Family("LayerNorm of a sum", norms.layer_norm_residual, rows()),
    Family("LayerNorm backward", norms.layer_norm_backward, rows()),
    Family("RMSNorm", norms.rms, rows()),
    Family("RMSNorm of a sum", norms.rms_residual, rows()),
    Family("RMSNorm backward", norms.rms_backward, rows()),
    Family("BatchNorm in training", norms.batch_norm_training,
           images((64, 56), (256, 14), (13, 29))),
    Family("BatchNorm in training, written out", norms.batch_norm_written_out,
           images((64, 56), (256, 14), (13, 29))),
    Family("softmax", norms.softmax, grid(rows=(1, 16, 128), width=_VOCABULARIES)),
    Family("log-softmax", norms.log_softmax, grid(rows=(1, 16, 128), width=_VOCABULARIES)),
    # families of matmuls with the nodes around them
    Family("MLP, GELU (BERT)", dense.mlp_gelu, rows()),
    Family("MLP, SwiGLU (Llama)", dense.mlp_swiglu, rows()),
    Family("MLP (DLRM)", dense.mlp_recommending, grid(rows=(1, 17, 128, 512), top=(0, 1))),
    Family("MoE routing", dense.routing,
           (*rows(experts=8, chosen=2), *rows(experts=64, chosen=8))),
    Family("quantise, matmul", dense.quantised,
           (*rows(inner=768, outer=768), *rows(inner=768, outer=3072),
            *grid(batch=_FEW, length=1, inner=768, outer=3072))),
    Family("decoder step", dense.decoder_step, grid(batch=_BATCHES, past=(17, 511))),
    Family("one row", dense.matmul,
           tuple({"m": 1, "k": k, "n": n} for k, n in (
               (768, 768), (768, 3072), (3072, 768), (1024, 1024), (4096, 4096), (768, 50_257),
               (1000, 1001), (67, 4099)))),
    Family("few rows", dense.matmul_bias_relu, grid(m=_FEW, k=(768, 1021), n=(768, 2053))),
    # families of convolutions
    Family("conv-norm-relu", convolutions.conv_norm_relu,
           images((64, 56), (256, 14), (512, 7), (19, 37))),
    Family("residual block (ResNet 18)", convolutions.residual,
           images((64, 56), (128, 28), (512, 7))),
    Family("bottleneck (ResNet 50)", convolutions.bottleneck,
           images((256, 56), (1024, 14), (2048, 7))),
    Family("depthwise separable (MobileNet)", convolutions.depthwise_separable,
           images((64, 112), (128, 56), (512, 14), (37, 41), stride=(1, 2))),
    Family("inverted residual (MobileNetV2)", convolutions.inverted_residual,
           images((24, 56), (64, 14), (160, 7), (17, 23))),
    Family("inverted residual, squeezed (EfficientNet)", convolutions.inverted_residual_squeezed,
           images((40, 28), (112, 14), (192, 7), (17, 23))),
    # families with gathers
    Family("mesh convolution (SubdivNet)", irregular.subdivnet, grid(faces=(500, 1024, 16_384))),
    Family("graph attention (GAT)", irregular.gat,
           ({"nodes": 300, "edges": 1500}, {"nodes": 2708, "edges": 10_556},
            {"nodes": 16_384, "edges": 262_144})),
    Family("faces to pixels (SoftRas)", irregular.softras,
           ({"faces": 97, "size": 32}, {"faces": 1024, "size": 64}, {"faces": 1280, "size": 256})),
    Family("gather", irregular.gather,
           grid(table=50_257, rows=(1, 17, 512, 4096), width=(64, 67, 768))),
    Family("embedding (GPT-2)", irregular.embedding, rows(table=50_257)),
    Family("embedding, LayerNorm (BERT)", irregular.embedding_norm, rows(table=30_522)),
    Family("embedding bag", irregular.bag,
           grid(bags=(1, 16, 2048), rows=(1, 10, 100), width=(32, 67, 128), table=100_000,
                mean=(0, 1))),
    Family("embedding bag, weighted", irregular.bag_weighted,
           grid(bags=(1, 16, 2048), rows=(10, 100), width=128, table=100_000)),
    Family("embedding bags (DLRM)", irregular.bags_of_tables,
           grid(bags=(1, 16, 512), rows=(1, 10), table=10_000)),
    # operations that PowerFusion was evaluated on and that no family above has
    Family("softmax of scores", norms.softmax_heads,
           ({"heads": 12, "length": 197}, {"heads": 12, "length": 512})),
    Family("GELU", pointwise.gelu,
           ({"length": 197, "width": 3072}, {"length": 512, "width": 3072})),
    Family("relu, add (SAR-DRN)", pointwise.relu_add, ({"channels": 64, "size": 512},)),
    Family("relu, sub (SAR-DRN)", pointwise.relu_sub, ({"channels": 1, "size": 512},)),
    Family("bias (ShuffleNet)", pointwise.bias_add,
           tuple({"size": size, "channels": channels} for size, channels in _SHUFFLED)),
    Family("channel shuffle (ShuffleNet)", pointwise.channel_shuffle,
           tuple({"size": size, "channels": channels} for size, channels in _SHUFFLED[1:])),
    Family("row means", pointwise.row_means, ({"rows": 128, "width": 512},)),
    Family("transpose, relu", pointwise.transpose_relu, ({"a": 32, "b": 31, "c": 33, "d": 32},)),
    # Most of these sizes leave a remainder after full vectors.
    Family("tanh", pointwise.tanh, grid(count=(17, 1000, 65_536, 1_048_576, 16_777_259))),
)  # fmt: skip


def sweep(count: int = SWEEP) -> Iterator[SubgraphCase]:
    """Yields `count` of the 343,000 matmuls with M, K, N from 1 to 70, in a random order.

    The order is the same for every `count`. Four kinds of graphs take turns.
    """
    kinds = (
        ("sweep of matmuls", dense.matmul),
        ("sweep of matmuls, bias, relu", dense.matmul_bias_relu),
        ("sweep of matmuls of inputs", dense.matmul_inputs),
        ("sweep of matmuls of inputs, transposed", dense.matmul_transposed),
    )
    for number, place in enumerate(_shuffled()[:count]):
        quotient, n = divmod(place, _LARGEST)
        m, k = divmod(quotient, _LARGEST)
        yield SubgraphCase(*kinds[number % len(kinds)], {"m": m + 1, "k": k + 1, "n": n + 1})


@cache
def _shuffled() -> list[int]:
    places = list(range(_LARGEST**3))
    random.Random(_SEED).shuffle(places)
    return places


def cases(swept: int = SWEEP) -> list[SubgraphCase]:
    """Returns all graphs in the order of the list: those of FAMILIES, then `swept` of the sweep.

    Graphs that do not fit into memory are among them.
    """
    family_cases = [SubgraphCase(f.name, f.build, sizes) for f in FAMILIES for sizes in f.sizes]
    return [*family_cases, *sweep(swept)]
