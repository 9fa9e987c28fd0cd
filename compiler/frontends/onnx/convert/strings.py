"""Converters of operators on strings."""

from collections.abc import Sequence

import numpy as np
from tcc.frontends.emit import broadcast, constant
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index
from tcc.ir.types import I64, STRING
from tcc.ops.data.strings import change_case


def _text_operand(texts: Sequence[str]) -> Operand:
    array = np.empty(len(texts), object)
    array[:] = list(texts)
    return constant(array, STRING)


def _string_concat(x: Operand, y: Operand) -> Results:
    shape = broadcast(x.shape, y.shape)
    return x.expand(shape).string_concat(y.expand(shape))


def _string_split(
    ctx: NodeContext, x: Operand, *, maxsplit: int = -1, delimiter: str = ""
) -> Results:
    size = _fresh(ctx, 0)
    return x.emit_all(
        "string_split",
        delimiter=delimiter,
        most=max(maxsplit, -1),
        size=size,
    )


def _fresh(ctx: NodeContext, lo: int) -> Index:
    return ctx.session.fresh_symbol(f"{ctx.node.output[0] or 'strings'}.size", lo)


def _string_normalizer(
    ctx: NodeContext,
    x: Operand,
    *,
    stopwords: tuple[str, ...],
    case_change_action: str,
    is_case_sensitive: bool,
) -> Results:
    if x.rank not in (1, 2) or (x.rank == 2 and x.extent(0) not in (None, 1)):
        raise Refusal(f"{x.type!r} is no row of strings")
    row = x.reshape((x.shape[-1],))
    if case_change_action not in ("NONE", "LOWER", "UPPER"):
        raise Refusal(f"no case change is called {case_change_action[:40]}")
    changed = (
        row
        if case_change_action == "NONE"
        else row.string_case(upper=case_change_action == "UPPER")
    )
    if stopwords:
        key = row if is_case_sensitive else row.string_case(upper=False)
        stop_words = _text_operand(
            stopwords if is_case_sensitive else [change_case(s, False) for s in stopwords]
        )
        changed = changed.string_remove(key, stop_words, size=_fresh(ctx, 1))
    return changed if x.rank == 1 else changed.reshape((1, changed.shape[0]))


def _tf_idf_vectorizer(
    ctx: NodeContext,
    x: Operand,
    *,
    mode: str,
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    weights: tuple[float, ...],
) -> Results:
    if ctx.has("pool_strings") == ctx.has("pool_int64s"):
        raise Refusal("one pool is due, of strings or of integers")
    if ctx.has("pool_strings"):
        pool = _text_operand(ctx.texts("pool_strings"))
    else:
        pool = constant(np.array(ctx.integers("pool_int64s"), np.int64), I64)
    return x.tf_idf(
        pool,
        mode=mode,
        least=min_gram_length,
        most=max_gram_length,
        skips=max_skip_count,
        counts=ngram_counts,
        places=ngram_indexes,
        weights=weights,
    )


CONVERTERS: Converters = named(
    _string_concat, _string_split, _string_normalizer, _tf_idf_vectorizer
)
