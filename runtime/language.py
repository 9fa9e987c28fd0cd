"""Texts in a language model: keys and values that are kept from run to run, and the next token.

context = TextContext(tcc.load("lm.so"), capacity=512)
logits = context.append(tokens)           # the prompt; a later call appends to it
token = next_token(logits[-1])

batch = TextBatch(tcc.load("batched.so"), texts=2, capacity=512)
logits = batch.append([tokens, others])   # a row for each text
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.module import Module
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError

_TOKENS, _ROWS, _LOGITS, _LENGTHS = "tokens", "rows", "logits", "lengths"
# Control and format characters and surrogates of Unicode, and those of them that texts need.
_CONTROLS, _KEPT = ("Cc", "Cf", "Cs"), "\n\t\u200c\u200d"


class TextContext:
    """A text in a language model, as the keys and values of its tokens.

    `capacity` is the number of tokens for which it has memory, `length` the number that it holds,
    and `vocabulary` the number of different tokens. Several contexts may use one module.
    """

    def __init__(self, module: Module, capacity: int) -> None:
        """Makes an empty context; raises InputError for a module that is no language model, or
        whose caches have other sizes that are not fixed.

        A language model has an input `tokens`, caches to which a run appends a row for each token,
        and an output `logits`. It may have an input `rows`, the tokens whose logits are wanted.
        """
        self.capacity, self.length = capacity, 0
        self._module = module
        axes = {item["input"]: item["axis"] for item in module.manifest.get("appends", ())}
        ports = {port.name: port for port in module.inputs}
        logits = {port.name: port for port in module.outputs}.get(_LOGITS)
        if _TOKENS not in ports or logits is None or {*ports} - {*axes, _TOKENS, _ROWS}:
            raise _other_model(module)
        self.vocabulary = int(logits.shape[-1] or 0)
        self._has_rows = _ROWS in ports
        self._axes = axes
        self._caches = {name: _cache(ports[name], axis, capacity) for name, axis in axes.items()}

    def append(self, tokens: Sequence[int], rows: int = 1) -> np.ndarray[Any, Any]:
        """Appends tokens to the text, and returns the logits of its last `rows` tokens.

        The result is f32 [rows, vocabulary]: each row has the logits of the token that follows. A
        failed call leaves the length as it was. Raises InputError for no tokens, for a token
        outside the vocabulary, and for more tokens than the capacity leaves.
        """
        if not len(tokens):
            raise InputError("there are no tokens", hint="give at least one token")
        if not 0 < rows <= len(tokens):
            raise InputError(
                "the logits of other tokens are not computed again",
                why=f"{rows} rows of logits are asked for, and {len(tokens)} tokens are given",
            )
        _check_room(self.length, len(tokens), self.capacity)
        _check_tokens(tokens, self.vocabulary)
        count, end = len(tokens), self.length + len(tokens)
        inputs: dict[str, Any] = {_TOKENS: np.asarray(tokens, np.int64)}
        if self._has_rows:
            inputs[_ROWS] = np.arange(count - rows, count)
        for name, cache in self._caches.items():
            inputs[name] = cache[(slice(None),) * self._axes[name] + (slice(end),)]
        logits: np.ndarray[Any, Any] = self._module.run(inputs)[_LOGITS]
        self.length = end
        return logits[-rows:]

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens of the text; raises InputError if it has fewer."""
        _check_cut(length, self.length)
        self.length = length


class TextBatch:
    """Texts of unlike lengths in a language model, which run together.

    `lengths` has the number of tokens of each text, and `vocabulary` the number of different
    tokens. The model is one that was compiled for batches. All texts have memory for `capacity`
    tokens each. Several batches may use one module.
    """

    def __init__(self, module: Module, texts: int, capacity: int) -> None:
        """Makes empty texts; raises InputError for a module that takes no batches."""
        ports = {port.name: port for port in module.inputs}
        logits = {port.name: port for port in module.outputs}.get(_LOGITS)
        names = {name for name in ports if name.startswith("cache.")}
        if logits is None or {*ports} - names != {_TOKENS, _ROWS, _LENGTHS}:
            raise _other_model(module)
        self.lengths, self.capacity = [0] * texts, capacity
        self.vocabulary = int(logits.shape[-1] or 0)
        self._module = module
        sizes = {name: [size or 0 for size in ports[name].shape[2:]] for name in names}
        self._caches = {
            name: np.zeros((capacity, texts, *shape), abi.numpy_dtype(ports[name].dtype))
            for name, shape in sizes.items()
        }

    def append(self, tokens: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
        """Appends tokens to each text, and returns the logits behind the last of them.

        The result is f32 [texts, vocabulary]. `tokens` has a list for each text; a text whose list
        is empty stays as it is, and its logits are NaN. The longest text and the longest list must
        fit into the capacity together. A failed call leaves the lengths as they were. Raises
        InputError for no tokens at all, for a token outside the vocabulary, and for a full batch.
        """
        counts = [len(items) for items in tokens]
        if len(counts) != len(self.lengths) or not any(counts):
            raise InputError(
                "there are no tokens for the texts",
                why=f"{len(counts)} lists with {sum(counts)} tokens are given for "
                f"{len(self.lengths)} texts",
            )
        most, longest = max(counts), max(self.lengths)
        _check_room(longest, most, self.capacity)
        # Lists are padded on the right: a token sees no later token, and the next run writes over
        # the rows of the padding.
        padded = np.zeros((len(counts), most), np.int64)
        for row, items in zip(padded, tokens, strict=True):
            if len(items):
                _check_tokens(items, self.vocabulary)
                row[: len(items)] = items
        results = self._module.run(
            {
                _TOKENS: padded,
                _ROWS: np.maximum(counts, 1)[:, np.newaxis] - 1,
                _LENGTHS: np.array(self.lengths, np.int64),
                **{name: cache[: longest + most] for name, cache in self._caches.items()},
            }
        )
        self.lengths = [a + b for a, b in zip(self.lengths, counts, strict=True)]
        logits: np.ndarray[Any, Any] = results[_LOGITS][:, 0]
        logits[np.array(counts) == 0] = np.nan
        return logits

    def truncate(self, text: int, length: int) -> None:
        """Keeps the first `length` tokens of text number `text`; raises InputError if it has
        fewer."""
        _check_cut(length, self.lengths[text])
        self.lengths[text] = length


def _other_model(module: Module) -> InputError:
    """Returns the error to raise for a module whose ports are not the due ones."""
    names = [port.name for port in module.inputs]
    ports = {name for name in names if not name.startswith("cache.")}
    if {_TOKENS, _LENGTHS} <= ports:
        return InputError("the model is compiled for batches of texts", hint="use TextBatch")
    if ports == {_TOKENS, _ROWS}:
        return InputError(
            "the model is compiled for single texts",
            hint="use TextContext, or compile the model with --bucket batch=1,4",
        )
    return InputError(
        "the model is no language model that tcc imported",
        why=f"its inputs are {', '.join(names)}",
        hint="compile a GGUF file or a folder with config.json",
    )


def _check_room(length: int, count: int, capacity: int) -> None:
    if length + count > capacity:
        raise InputError(
            "the context is full",
            why=f"it has room for {capacity} tokens, and holds {length} before {count} more",
            hint="make a context with a larger capacity, or begin a new text",
        )


def _check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    if vocabulary and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InputError(
            "a token is not in the vocabulary",
            why=f"tokens are numbers from 0 to {vocabulary - 1}, and those given are from "
            f"{min(tokens)} to {max(tokens)}",
            hint="use the tokenizer of this model",
        )


def _check_cut(length: int, tokens: int) -> None:
    if not 0 <= length <= tokens:
        raise InputError(
            "the text cannot be cut there", why=f"it has {tokens} tokens, not {length}"
        )


def _cache(port: ModulePort, axis: int, capacity: int) -> np.ndarray[Any, Any]:
    """Returns zeros with room for `capacity` rows along an axis."""
    sizes = [capacity if number == axis else size for number, size in enumerate(port.shape)]
    if None in sizes:
        raise InputError(
            "a cache has sizes that the model does not fix",
            where=port.name,
            why=f"its shape is {port.text}",
            hint="fix them when you compile, with --input NAME=SHAPE",
        )
    return np.zeros([size or 0 for size in sizes], abi.numpy_dtype(port.dtype))


def next_token(
    logits: np.ndarray[Any, Any],
    temperature: float = 0.0,
    top_p: float = 1.0,
    draws: np.random.Generator | None = None,
) -> int:
    """Returns a token for one row of logits.

    With `temperature` 0 it is the likeliest token, the first of equals. Otherwise it is drawn from
    softmax(logits / temperature), of which only the likeliest tokens remain that have a probability
    of at least `top_p` together (nucleus sampling, Holtzman et al. 2020). `draws` is the source of
    random numbers; by default it is a new one.
    """
    if temperature <= 0:
        return int(np.argmax(logits))
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    weights = np.exp(scaled)
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    last = int(np.searchsorted(sums, top_p * sums[-1]))
    point = (draws or np.random.default_rng()).random() * sums[last]
    place = int(np.searchsorted(sums[:last], point, side="right"))
    return int(order[place])


class TextStream:
    """The text of tokens as they come; it ends before the first of the texts `stops`.

    `text` is the text so far, and `ended` is true after one of `stops` came.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        """Begins an empty text; `tokenizer` is a `tokenizers.Tokenizer`."""
        self.text, self.ended = "", False
        self._tokenizer, self._stops = tokenizer, stops
        self._stream = import_module("tokenizers.decoders").DecodeStream(skip_special_tokens=True)
        self._hold = max((len(stop) - 1 for stop in stops), default=0)
        self._shown = 0  # characters that were returned

    def add(self, token: int) -> str:
        """Returns the new part of the text, without an end that may begin one of `stops`.

        A part is empty if its character needs more tokens.
        """
        self.text += self._stream.step(self._tokenizer, token) or ""
        places = [place for stop in self._stops if (place := self.text.find(stop)) >= 0]
        if places:
            self.text, self.ended = self.text[: min(places)], True
        return self._part(0 if self.ended else self._hold)

    def end(self) -> str:
        """Returns the part of the text that `add` has not returned."""
        return self._part(0)

    def _part(self, hold: int) -> str:
        begin, self._shown = self._shown, max(self._shown, len(self.text) - hold)
        return self.text[begin : self._shown]


def harmless(text: str) -> str:
    """Returns a text without control characters, which could command a terminal.

    Line ends and tabulators stay, and characters that join letters or emoji.
    """
    return "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _CONTROLS)
