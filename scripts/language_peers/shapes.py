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
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import LlamaConfig, PreTrainedTokenizerFast

# The type of matrices in the file, for each precision of the table, and GGUF's name of such files.
STORED = {"f32": "F32", "bf16": "BF16", "f16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
_FILES = {
    "f32": "ALL_F32", "bf16": "MOSTLY_BF16", "f16": "MOSTLY_F16", "int8": "MOSTLY_Q8_0",
    "int4": "MOSTLY_Q4_0",
}  # fmt: skip
# Hugging Face's names of a layer's matrices, by GGUF's.
_FOLDER_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "token_embd": "embed_tokens", "output_norm": "norm",
}  # fmt: skip
CONTEXT = 2048
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NORMAL, _CONTROL = 1, 3  # types of tokens by SentencePiece's numbers


@dataclass(frozen=True, slots=True)
class LlamaShape:
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


def write_model(path: Path, shape: LlamaShape, precision: str) -> None:
    """Writes a GGUF file with seeded weights; equal arguments give equal bytes.

    `precision` is a key of STORED. One matrix at a time is in memory. If the process is stopped
    before the end, there is no file at `path`, or the old one.
    """
    kind = gguf.GGMLQuantizationType[STORED[precision]]
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_file_type(gguf.LlamaFileType[_FILES[precision]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _write_facts(writer, shape)
    for name, size in shape.matrices():
        byte_shape = gguf.quants.quant_shape_to_byte_shape(size, kind)
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), int(np.prod(byte_shape)), kind)
    for name in shape.norms():
        writer.add_tensor_info(name, (shape.width,), np.dtype(np.float32), 4 * shape.width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, matrix in _drawn(shape):
        writer.write_tensor_data(gguf.quants.quantize(matrix, kind))
    for _ in shape.norms():
        writer.write_tensor_data(np.ones(shape.width, np.float32))
    writer.close()
    temporary.replace(path)


def write_folder(folder: Path, shape: LlamaShape) -> None:
    """Writes the f32 model as a folder of Hugging Face; its tokenizer is that of the GGUF file.

    The whole model is in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {_folder_name(name): _halves(name, matrix, shape) for name, matrix in _drawn(shape)}
    tensors |= {_folder_name(name): np.ones(shape.width, np.float32) for name in shape.norms()}
    save_file(tensors, folder / "model.safetensors")
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"], dtype="float32",
    )  # fmt: skip
    config.save_pretrained(folder)
    tokens, merges = _vocabulary(shape.vocabulary)
    numbers = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(numbers, [tuple(merge.split()) for merge in merges]))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_SPECIAL[1], eos_token=_SPECIAL[2]
    ).save_pretrained(folder)


def _drawn(shape: LlamaShape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yields each matrix with its GGUF name; equal shapes give equal matrices."""
    draws = np.random.default_rng(shape.layers)
    for name, size in shape.matrices():
        yield name, draws.standard_normal(size, np.float32) * np.float32(size[1] ** -0.5)


def _folder_name(name: str) -> str:
    """Returns Hugging Face's name of a tensor."""
    if name == "output.weight":
        return "lm_head.weight"
    *layer, kind, suffix = name.split(".")
    prefix = f"layers.{layer[1]}." if layer else ""
    return f"model.{prefix}{_FOLDER_NAMES[kind]}.{suffix}"


def _halves(name: str, matrix: NDArray[np.float32], shape: LlamaShape) -> NDArray[np.float32]:
    """Puts the halves of rotated pairs apart, which GGUF files of Llama hold side by side."""
    if ".attn_q." not in name and ".attn_k." not in name:
        return matrix
    pairs = matrix.reshape(-1, shape.width // shape.heads // 2, 2, shape.width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(matrix.shape)


def _write_facts(writer: gguf.GGUFWriter, shape: LlamaShape) -> None:
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
    tokens, merges = _vocabulary(shape.vocabulary)
    kinds = [_CONTROL] * len(_SPECIAL) + [_NORMAL] * (len(tokens) - len(_SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Returns (tokens, merges).

    The tokens are special tokens, GPT-2's characters for bytes, and pairs of characters.

    OpenVINO GenAI reads no other kind of vocabulary in GGUF files.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    pairs = [(a, b) for a in letters for b in letters][: size - len(_SPECIAL) - len(letters)]
    tokens = [*_SPECIAL, *letters, *(a + b for a, b in pairs)]
    return tokens, [f"{a} {b}" for a, b in pairs]
