"""Seeded language models of TinyLlama's shape, as GGUF files that all runtimes read.

The weights are random, so the models say nothing sensible; their speed is that of trained models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

# The type of matrices in the file, for each precision of the table.
STORED = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
CONTEXT = 2048
_SPECIAL = ("<unk>", "<s>", "</s>")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # types of tokens by SentencePiece's numbers


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama; the defaults are those of TinyLlama-1.1B."""

    layers: int = 22
    width: int = 2048
    heads: int = 32
    key_heads: int = 4
    hidden: int = 5632
    vocabulary: int = 32000

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yields the GGUF name and the shape [out, in] of each matrix, in the order of the file."""
        keys = self.width // self.heads * self.key_heads
        yield "token_embd.weight", (self.vocabulary, self.width)
        for layer in range(self.layers):
            prefix = f"blk.{layer}"
            yield f"{prefix}.attn_q.weight", (self.width, self.width)
            yield f"{prefix}.attn_k.weight", (keys, self.width)
            yield f"{prefix}.attn_v.weight", (keys, self.width)
            yield f"{prefix}.attn_output.weight", (self.width, self.width)
            yield f"{prefix}.ffn_gate.weight", (self.hidden, self.width)
            yield f"{prefix}.ffn_up.weight", (self.hidden, self.width)
            yield f"{prefix}.ffn_down.weight", (self.width, self.hidden)
        yield "output.weight", (self.vocabulary, self.width)

    def norms(self) -> Iterator[str]:
        """Yields the GGUF names of the norms, each with `width` weights."""
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"
        yield "output_norm.weight"


def write_model(path: Path, shape: Shape, precision: str) -> None:
    """Writes a GGUF file with seeded weights; equal arguments give equal bytes.

    `precision` is a key of STORED. One matrix at a time is in memory. If the process is stopped
    before the end, there is no file at `path`, or the old one.
    """
    kind = gguf.GGMLQuantizationType[STORED[precision]]
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(temporary, "llama")
    _write_facts(writer, shape)
    for name, size in shape.matrices():
        stored = gguf.quants.quant_shape_to_byte_shape(size, kind)
        writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), kind)
    for name in shape.norms():
        writer.add_tensor_info(name, (shape.width,), np.dtype(np.float32), 4 * shape.width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    draws = np.random.default_rng(shape.layers)
    for _, size in shape.matrices():
        matrix = draws.standard_normal(size, np.float32) * np.float32(size[1] ** -0.5)
        writer.write_tensor_data(gguf.quants.quantize(matrix, kind))
    for _ in shape.norms():
        writer.write_tensor_data(np.ones(shape.width, np.float32))
    writer.close()
    temporary.replace(path)


def _write_facts(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    words = [f"\u2581{number}" for number in range(shape.vocabulary - len(bytes_) - len(_SPECIAL))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(bytes_), *[_NORMAL] * len(words)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *bytes_, *words])
    writer.add_token_scores([0.0] * (len(_SPECIAL) + 256) + [-float(n) for n in range(len(words))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
