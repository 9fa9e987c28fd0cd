"""Imports a language model from a file of weights as a graph with its caches bound as states."""

from collections.abc import Mapping, Sequence

from tcc.errors import UserError
from tcc.frontends.emit import Emitter
from tcc.frontends.inputs import Shapes, check_names, check_rank, contradiction
from tcc.frontends.operand import Operand
from tcc.frontends.outputs import output_values, rename
from tcc.frontends.scope import ImportSession, Scope
from tcc.frontends.weights.attention import Run, attention
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.config import read_config
from tcc.frontends.weights.mlp import mlp
from tcc.frontends.weights.tensors import Tensors, named
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import Index, const
from tcc.ir.types import F32, I64, TensorType
from tcc.passes.graph.state import bind_states

# Prices assume a prompt of this many tokens, behind as many, if no bucket says otherwise.
_TYPICAL = 128
_TOKENS, _ROWS = "tokens", "rows"


def import_checkpoint(checkpoint: Checkpoint, shapes: Shapes | None = None) -> Graph:
    """Returns the graph of a language model.

    Inputs: `tokens`, i64 `[seq]`; `rows`, i64 `[n]`, the rows of `tokens` that get logits; and for
    each layer L the caches `cache.L.k` and `cache.L.v`, f32 `[past + seq, key heads, head width]`,
    whose first `past` rows earlier runs have written. Outputs: `logits`, f32 `[n, vocabulary]`, and
    `cache.L.k.next` and `cache.L.v.next`, which are the caches with the run's rows appended in
    place. `past` may be 0.

    `shapes` gives `tokens` and `rows` their sizes, or names them. Raises `UserError` for a family,
    a tensor, a fact or a rotary form that tcc does not know.
    """
    config = read_config(checkpoint)
    tensors = Tensors(checkpoint, config)
    scope = Scope(ImportSession(), GraphBuilder("model"))
    sizes = _sizes(scope.session, shapes or {}, config.layers)
    run = Run(config, tensors, sizes["past"], sizes["seq"], {}, {})
    tokens = scope.input(_TOKENS, TensorType(I64, (sizes["seq"],)))
    rows = scope.input(_ROWS, TensorType(I64, (sizes["n"],)))
    form = (sizes["past"], const(config.key_heads), const(config.head_width))
    names = _cache_names(config.layers)
    caches = [scope.input(name, TensorType(F32, form)) for name in names]
    logits, longer = _model(scope, run, (tokens, rows), caches)
    tensors.check_all_read()
    nexts = [f"{name}.next" for name in names]
    results = [("logits", logits), *zip(nexts, longer, strict=True)]
    values = output_values(scope, [tokens, rows, *caches], results)
    new_names = {value: name for value, (name, _) in zip(values, results, strict=True)}
    graph = rename(scope.builder.finish(values), new_names)
    return bind_states(graph, zip(names, nexts, strict=True))


def _cache_names(layers: int) -> list[str]:
    return [f"cache.{layer}.{part}" for layer in range(layers) for part in "kv"]


def _sizes(session: ImportSession, shapes: Shapes, layers: int) -> Mapping[str, Index]:
    """Returns the sizes `seq`, `n` and `past`; raises `UserError` for shapes that do not fit."""
    check_names(shapes, [_TOKENS, _ROWS, *_cache_names(layers)], "model")
    sizes = {"past": session.fresh_symbol("past", typical=_TYPICAL)}
    for name, hint, typical in ((_TOKENS, "seq", _TYPICAL), (_ROWS, "n", 1)):
        shape = shapes.get(name, (hint,))
        check_rank(name, shape, 1, "model declares")
        (size,) = shape
        if isinstance(size, str):
            sizes[hint] = session.fresh_symbol(size, 1, typical=typical)
        elif size < 1:
            raise contradiction(name, size, "model declares", "at least 1")
        else:
            sizes[hint] = const(size)
    for name in shapes.keys() - {_TOKENS, _ROWS}:
        raise UserError(
            f"the shape of input '{name}' is not free",
            why="a run appends a row for each token to the rows that the cache holds",
            hint=f"fix the number of {_TOKENS} in its place",
        )
    return sizes


class _Part(Emitter):
    """Writes the nodes of one part of a model; `loc` is the start of its tensors' names."""

    def __init__(self, scope: Scope, loc: str) -> None:
        self.scope, self.loc, self.operation, self.names = scope, loc, "the language model", (loc,)


def _model(
    scope: Scope, run: Run, inputs: tuple[Operand, Operand], caches: Sequence[Operand]
) -> tuple[Operand, list[Operand]]:
    """Returns the logits, and the caches with the rows of the run.

    The last layer and what follows it work on the rows that get logits, except for its keys and
    values.
    """
    config, (tokens, rows) = run.config, inputs
    longer: list[Operand] = []
    with _Part(scope, "token_embd").writing():
        x = _embeddings(run, tokens)
    for layer in range(config.layers):
        with _Part(scope, f"blk.{layer}").writing():
            normal = _norm(run, x, f"blk.{layer}.attn_norm")
            mixed, pair = attention(run, normal, layer, caches[2 * layer : 2 * layer + 2])
            longer += pair
            if layer == config.layers - 1:
                mixed, x = (y.gather(rows, axis=0) for y in (mixed, x))
            name = f"blk.{layer}.attn_output"
            y = run.tensors.matmul(mixed, name, config.width)
            x = x + _post_norm(run, y, f"blk.{layer}.post_attention_norm")
            y = mlp(run, _norm(run, x, f"blk.{layer}.ffn_norm"), layer)
            x = x + _post_norm(run, y, f"blk.{layer}.post_ffw_norm")
    with _Part(scope, "output").writing():
        return _logits(run, _norm(run, x, "output_norm")), longer


def _embeddings(run: Run, tokens: Operand) -> Operand:
    """Returns the rows of the tokens.

    A negative token would count from the end of the table, so it becomes one behind the table.
    """
    config, tensors, table = run.config, run.tensors, "token_embd.weight"
    inside = (tokens < 0).select(tensors.rows(table), tokens)
    x = tensors.gathered(table, inside, config.width)
    if config.family.scaled:
        x = x * config.width**0.5
    if config.family.learned:
        x = x + tensors.gathered("position_embd.weight", run.positions(), config.width)
    return x


def _norm(run: Run, x: Operand, name: str) -> Operand:
    config = run.config
    weights = run.tensors.norm(f"{name}.weight", config.width)
    is_layer_norm = config.family.norm == "layer_normalization"
    bias = run.tensors.vector(f"{name}.bias", config.width) if is_layer_norm else None
    with named(name):
        return x.emit(config.family.norm, weights, bias, axis=1, epsilon=config.epsilon)


def _post_norm(run: Run, x: Operand, name: str) -> Operand:
    return _norm(run, x, name) if run.config.family.post_norms else x


def _logits(run: Run, x: Operand) -> Operand:
    """Returns the logits of normalised rows; a model without their matrix takes that of tokens."""
    config, tensors = run.config, run.tensors
    is_tied = config.is_tied or (config.is_tied is None and "output.weight" not in tensors)
    y = tensors.matmul(x, "token_embd" if is_tied else "output", tensors.rows("token_embd.weight"))
    if config.logit_cap:
        y = (y / config.logit_cap).tanh() * config.logit_cap
    return y
