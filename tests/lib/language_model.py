"""A tiny language model with the ports of an imported one, and its results in float64 NumPy.

    tokens i64 [seq], rows i64 [n], cache.0.k and cache.0.v f32 [past, heads, width]
    -> logits f32 [n, vocabulary], cache.0.k.next and cache.0.v.next f32 [past + seq, heads, width]

It has one layer of causal attention over learned positions; the weights are seeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HEADS, WIDTH, CONTEXT = 2, 8, 256
_FULL = HEADS * WIDTH
STATES = ("cache.0.k=cache.0.k.next", "cache.0.v=cache.0.v.next")
# Identifiers in ONNX's text have no dots, so the model renames its caches.
_TEXT = """<ir_version: 9, opset_import: ["": 18]>
    language (int64[seq] tokens, int64[n] rows,
              float[past, {heads}, {width}] cache_k, float[past, {heads}, {width}] cache_v)
    => (float[n, {vocabulary}] logits, float[length, {heads}, {width}] cache_k_next,
        float[length, {heads}, {width}] cache_v_next) {{
        zero = Constant <value_int = 0> ()   one = Constant <value_int = 1> ()
        parts = Constant <value_ints = [-1, {heads}, {width}]> ()
        whole = Constant <value_ints = [-1, {full}]> ()
        below = Constant <value_float = -1e30> ()
        kept = Shape <start = 0, end = 1> (cache_k)   past = Squeeze (kept)
        sizes = Shape (tokens)   seq = Squeeze (sizes)
        end = Add (past, seq)
        here = Range (past, end, one)   all = Range (zero, end, one)
        word = Gather (words, tokens)   place = Gather (places, here)
        x = Add (word, place)
        xq = MatMul (x, wq)   q = Reshape (xq, parts)
        xk = MatMul (x, wk)   k = Reshape (xk, parts)
        xv = MatMul (x, wv)   v = Reshape (xv, parts)
        cache_k_next = Concat <axis = 0> (cache_k, k)
        cache_v_next = Concat <axis = 0> (cache_v, v)
        qt = Transpose <perm = [1, 0, 2]> (q)
        kt = Transpose <perm = [1, 2, 0]> (cache_k_next)
        vt = Transpose <perm = [1, 0, 2]> (cache_v_next)
        products = MatMul (qt, kt)   scores = Mul (products, scale)
        behind = Unsqueeze (here, one)   later = Greater (all, behind)
        masked = Where (later, below, scores)
        weights = Softmax <axis = -1> (masked)
        mixed = MatMul (weights, vt)   back = Transpose <perm = [1, 0, 2]> (mixed)
        flat = Reshape (back, whole)   projected = MatMul (flat, wo)
        y = Add (x, projected)   wanted = Gather (y, rows)
        logits = MatMul (wanted, head)
    }}"""


def byte_tokenizer() -> Tokenizer:
    """Returns a tokenizer with one token for each byte, in the order of the bytes' characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def language_model(vocabulary: int, seed: int = 0) -> onnx.ModelProto:
    """Returns the model; `STATES` pairs its caches."""
    sizes = {"heads": HEADS, "width": WIDTH, "full": _FULL, "vocabulary": vocabulary}
    model = onnx.parser.parse_model(_TEXT.format(**sizes))
    arrays = {**tables(vocabulary, seed), "scale": np.array(WIDTH**-0.5, np.float32)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    names = {f"cache_{s}{end}": f"cache.0.{s}{end.replace('_', '.')}"
             for s in "kv" for end in ("", "_next")}  # fmt: skip
    for port in (*model.graph.input, *model.graph.output):
        port.name = names.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


def tables(vocabulary: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the model's weights as f32 arrays by name."""
    random = np.random.default_rng(seed)
    shapes = {
        "words": (vocabulary, _FULL), "places": (CONTEXT, _FULL), "head": (_FULL, vocabulary),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (_FULL, _FULL)),
    }  # fmt: skip
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[0] if name[0] == "w" else 1)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def expected_logits(tokens: Sequence[int], vocabulary: int, seed: int = 0) -> Any:
    """Returns the logits f64 [tokens, vocabulary] of a text, computed without a cache."""
    w = {name: table.astype(np.float64) for name, table in tables(vocabulary, seed).items()}
    count = len(tokens)
    x = w["words"][[*tokens]] + w["places"][:count]
    q, k, v = ((x @ w[name]).reshape(count, HEADS, WIDTH) for name in ("wq", "wk", "wv"))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(WIDTH)
    scores[:, *np.triu_indices(count, 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", weights, v).reshape(count, _FULL)
    return (x + mixed @ w["wo"]) @ w["head"]


def greedy_tokens(prompt: Sequence[int], count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Returns the `count` likeliest tokens after a prompt, each computed from the whole text."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(expected_logits(tokens, vocabulary, seed)[-1].argmax()))
    return tokens[len(prompt) :]
