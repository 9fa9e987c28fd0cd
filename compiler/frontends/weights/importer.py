"""Imports a language model from a file of weights as a graph with its caches bound as states."""

from collections.abc import Collection, Sequence

from tcc.frontends.emit import Emitter, size_scalar
from tcc.frontends.inputs import Shapes, check_names, check_rank, contradiction
from tcc.frontends.operand import LARGEST_SIZE, Operand
from tcc.frontends.outputs import output_values, rename
from tcc.frontends.scope import ImportSession, Scope
from tcc.frontends.weights.attention import DecoderRun, attention
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.config import read_config
from tcc.frontends.weights.mlp import mlp
from tcc.frontends.weights.tensors import Tensors
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import Index, const
from tcc.ir.types import F32, I64, tensor
from tcc.passes.graph.state import bind_states
from tcc.zipped import zip_equal

# Prices assume a prompt of this many tokens behind so many tokens in the caches, if no bucket says
# otherwise; and this many texts in a batch. Long caches are where attention takes its time.
_TYPICAL, _TYPICAL_PAST, _TYPICAL_BATCH = 128, 1024, 4
_TOKENS, _ROWS = "tokens", "rows"
# The symbol of a batch, if `tokens` gets no shape.
_BATCH = "batch"


def import_checkpoint(
    checkpoint: Checkpoint, shapes: Shapes | None = None, symbols: Collection[str] = ()
) -> Graph:
    """Returns the graph of a language model.

    Inputs: `tokens`, i64 `[seq]`; `rows`, i64 `[n]`, the rows of `tokens` that get logits; and for
    each layer L the caches `cache.L.k` and `cache.L.v`, f32 `[past + seq, key heads, head width]`,
    whose first `past` rows earlier runs have written. Outputs: `logits`, f32 `[n, vocabulary]`, and
    `cache.L.k.next` and `cache.L.v.next`, which are the caches with the run's rows appended in
    place. `past` may be 0.

    A batch of texts has `tokens` `[batch, seq]`, `rows` `[batch, n]`, caches `[past + seq, batch,
    key heads, head width]` and `logits` `[batch, n, vocabulary]`. Its input `lengths`, i64
    `[batch]`, counts the rows that earlier runs have written for each text, at most `past`; the
    run's rows follow them. Texts with fewer tokens than others end in any tokens, which no token of
    the text sees. The last token is the last of `rows`.

    `shapes` gives `tokens` and `rows` their sizes, or names them. Two sizes of `tokens`, or
    "batch" among `symbols`, make a batch. Raises `UserError` for a family, a tensor, a fact or a
    rotary form that tcc does not know.
    """
    config = read_config(checkpoint)
    tensors = Tensors(checkpoint, config)
    scope = Scope(ImportSession(), GraphBuilder("model"))
    *batch, seq, n = _sizes(scope.session, shapes or {}, symbols)
    past = scope.session.fresh_symbol("past", typical=_TYPICAL_PAST)
    ports = [
        scope.input(name, tensor(I64, *batch, size)) for name, size in ((_TOKENS, seq), (_ROWS, n))
    ]
    ports += [scope.input(name, tensor(I64, *batch)) for name in ["lengths"] * len(batch)]
    names = [f"cache.{layer}.{part}" for layer in range(config.layers) for part in "kv"]
    rows = past + seq if batch else past
    form = tensor(F32, rows, *batch, config.key_heads, config.head_width)
    caches = [scope.input(name, form) for name in names]
    results = ["logits", *(f"{name}.next" for name in names)]
    with _part(scope, "lengths").writing():
        lengths, ends = _lengths(seq, *ports[1:]) if batch else (None, None)
    texts = batch[0] if batch else const(1)
    context = DecoderRun(config, tensors, past, seq, texts, lengths, ends)
    longer = _model(scope, context, ports, caches)
    tensors.check_all_read()
    values = output_values(scope, [*ports, *caches], zip_equal(results, longer))
    graph = rename(scope.builder.finish(values), dict(zip_equal(values, results)))
    return bind_states(graph, zip_equal(names, results[1:]))


def _sizes(session: ImportSession, shapes: Shapes, symbols: Collection[str]) -> list[Index]:
    """Returns the sizes of `tokens`, and the last size of `rows`.

    Raises `UserError` for shapes that do not fit.
    """
    check_names(shapes, (_TOKENS, _ROWS), "language model, beside its caches,")
    shape = tuple(shapes.get(_TOKENS, (_BATCH, "seq") if _BATCH in symbols else ("seq",)))
    rows = tuple(shapes.get(_ROWS, (*shape[:-1], "n")))
    check_rank(_TOKENS, shape, 1 + (len(shape) == 2), "model declares")
    check_rank(_ROWS, rows, len(shape), "model declares")
    if rows[:-1] != shape[:-1]:
        raise contradiction(_ROWS, rows[0], f"{_TOKENS} declare", shape[0])
    sizes = []
    typicals = (*[_TYPICAL_BATCH] * (len(shape) - 1), _TYPICAL, 1)
    for name, size, typical in zip_equal(
        (*[_TOKENS] * len(shape), _ROWS), (*shape, rows[-1]), typicals
    ):
        if size == 0:
            raise contradiction(name, size, "model declares", "at least 1")
        if isinstance(size, str):
            sizes.append(session.fresh_symbol(size, 1, typical=typical))
        else:
            sizes.append(const(size))
    return sizes


def _lengths(seq: Index, rows: Operand, lengths: Operand) -> tuple[Operand, Operand]:
    """Returns the lengths of a batch's texts in the caches before and after the run.

    A negative length would count from the end of the caches, so it becomes one behind them.
    """
    lengths = (lengths < 0).select(LARGEST_SIZE, lengths)
    last = (rows < 0).select(rows + size_scalar(seq), rows).max(1)
    return lengths, lengths + last + 1


def _part(scope: Scope, start: str) -> Emitter:
    """Returns the emitter of one part of a model; `start` is the start of its tensors' names."""
    return Emitter(scope, start, (start,), "the language model")


def _model(
    scope: Scope, context: DecoderRun, ports: Sequence[Operand], caches: Sequence[Operand]
) -> list[Operand]:
    """Returns the logits, and the caches with the rows of the run.

    The last layer and what follows it work on the rows that get logits, except for its keys and
    values.
    """
    tokens, rows = ports[:2]
    longer: list[Operand] = []
    with _part(scope, "token_embd").writing():
        x = _embeddings(context, tokens)
    for layer in range(context.config.layers):
        start = f"blk.{layer}."
        with _part(scope, start).writing():
            normal = _norm(context, x, f"{start}attn_norm")
            mixed, pair = attention(context, normal, layer, caches[2 * layer : 2 * layer + 2])
            longer += pair
            if layer == context.config.layers - 1:
                mixed, x = (_wanted(context, y, rows) for y in (mixed, x))
            y = context.tensors.matmul(mixed, f"{start}attn_output", context.config.width)
            x = x + _post_norm(context, y, f"{start}post_attention_norm")
            y = mlp(context, _norm(context, x, f"{start}ffn_norm"), f"{start}ffn")
            x = x + _post_norm(context, y, f"{start}post_ffw_norm")
    with _part(scope, "output").writing():
        logits = _logits(context, _norm(context, x, "output_norm"))
        return [logits.reshape((*rows.shape, logits.shape[1])), *longer]


def _wanted(context: DecoderRun, x: Operand, rows: Operand) -> Operand:
    """Returns the rows of `x` that get logits."""
    if not context.lengths:
        return x.gather(rows, axis=0)
    texts = x.reshape((context.batch, context.seq, x.shape[1]))
    return texts.gather_nd(rows.unsqueeze(2), batch_dims=1).reshape(
        (rows.shape[0] * rows.shape[1], x.shape[1])
    )


def _embeddings(context: DecoderRun, tokens: Operand) -> Operand:
    """Returns the rows of the tokens.

    A negative token would count from the end of the table, so it becomes one behind the table.
    """
    tensors, family, table = context.tensors, context.config.family, "token_embd.weight"
    tokens = tokens.flat()
    x = tensors.gathered(table, (tokens < 0).select(tensors.shape(table)[0], tokens))
    if family.scaled:
        x = x * context.config.width**0.5
    if family.learned:
        x = x + tensors.gathered("position_embd.weight", context.positions())
    return x


def _norm(context: DecoderRun, x: Operand, name: str) -> Operand:
    config, family = context.config, context.config.family
    parts = [context.tensors.vector(f"{name}.weight", config.width, family.norm_offset)]
    if family.norm == "layer_normalization":
        parts.append(context.tensors.vector(f"{name}.bias", config.width))
    return x.emit(family.norm, *parts, axis=1, epsilon=config.epsilon)


def _post_norm(context: DecoderRun, x: Operand, name: str) -> Operand:
    return _norm(context, x, name) if context.config.family.post_norms else x


def _logits(context: DecoderRun, x: Operand) -> Operand:
    """Returns the logits of normalised rows; a model without their matrix takes that of tokens."""
    tensors, cap = context.tensors, context.config.logit_cap
    is_tied = context.config.is_tied or (
        context.config.is_tied is None and "output.weight" not in tensors
    )
    rows = tensors.shape("token_embd.weight")[0]
    y = tensors.matmul(x, "token_embd" if is_tied else "output", rows)
    return (y / cap).tanh() * cap if cap else y
