"""The reader of GGUF files agrees with the library gguf, and refuses hostile files."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from tcc.errors import UserError
from tcc.frontends.weights import gguf_file
from tcc.frontends.weights.blocks import BLOCKS
from tcc.frontends.weights.checkpoint import Levels
from tcc.frontends.weights.gguf_file import read_gguf

from tests.draws import RNG

from .gguf_files import Array, field, file_bytes, tensor, text, written

_FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def values(matrix: Levels) -> Array:
    """Returns the f32 values of levels, by the formula of `Levels`."""

    def spread(part: Array, count: int) -> Array:
        return np.repeat(part.astype(np.float32), count, axis=1)

    def factors(part: Array, units: Array | None) -> Array:
        scales = part.astype(np.float32)
        if units is not None:
            scales = scales * spread(units, part.shape[1] // units.shape[1])
        return spread(scales, matrix.group)

    levels = matrix.levels.astype(np.float32)
    if matrix.high is not None:
        levels = levels + np.float32(16) * matrix.high.astype(np.float32)
    sums = (levels - np.float32(matrix.zero)) * factors(matrix.scales, matrix.units)
    if matrix.minimums is not None:
        sums = sums + factors(matrix.minimums, matrix.minimum_units)
    return sums


def stored_bytes(matrix: Levels) -> float:
    """Returns the bytes that an artifact stores for levels."""
    bits = matrix.levels.size * matrix.dtype.bits
    bits += 0 if matrix.high is None else 2 * matrix.high.size
    arrays = (matrix.scales, matrix.minimums, matrix.units, matrix.minimum_units)
    return bits / 8 + sum(array.nbytes for array in arrays if array is not None)


def random_blocks(stored: str, rows: int, columns: int) -> Array:
    """Returns the bytes of random blocks, `[rows, bytes]`, whose factors are finite."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[stored]]
    data = RNG.integers(0, 256, (rows, columns // size[0] * size[1]), np.uint8)
    blocks = data.view(BLOCKS[stored][1])
    for name in {"d", "m"} & {*blocks.dtype.names}:
        factors = RNG.standard_normal(blocks.shape) * RNG.choice([0, 1e-7, 1, 100], blocks.shape)
        blocks[name] = factors.astype(np.float16)
    return data


@pytest.mark.parametrize("stored", BLOCKS)
def test_levels_have_the_values_of_the_library(stored: str, tmp_path: Path) -> None:
    data = random_blocks(stored, 6, 768)
    path = written(tmp_path / "m.gguf", {"w": (data.reshape(2, 3, -1), stored)})
    weight = read_gguf(path).weights["w"]
    matrix = weight.load()
    assert isinstance(matrix, Levels)
    assert (weight.shape, weight.type_name) == ((2, 3, 768), stored)
    expected = quants.dequantize(data, gguf.GGMLQuantizationType[stored])
    assert values(matrix).view(np.uint32).tolist() == expected.view(np.uint32).tolist()
    assert matrix.levels.dtype == matrix.dtype.carrier
    assert stored_bytes(matrix) <= 1.35 * data.nbytes


@pytest.mark.parametrize("stored", _FLOATS)
def test_floats_are_views_of_the_file(stored: str, tmp_path: Path) -> None:
    array = RNG.integers(0, 1 << 14, (3, 5)).astype(_FLOATS[stored])
    raw = array.view(np.uint8) if stored == "BF16" else array
    path = written(tmp_path / "m.gguf", {"a": (raw, stored), "b": (raw + 1, stored)})
    weights = read_gguf(path).weights
    contents = weights["a"].load()
    assert isinstance(contents, np.ndarray)
    assert contents.dtype == array.dtype
    np.testing.assert_array_equal(contents, array)
    assert not contents.flags.owndata
    assert not contents.flags.writeable
    assert weights["b"].type_name == stored


def test_fields_of_all_types_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars: dict[str, Any] = {
        "uint8": 255, "int8": -1, "uint16": 65535, "int16": -2, "uint32": 1 << 31, "int32": -3,
        "uint64": 1 << 63, "int64": -(1 << 62), "float32": 0.5, "float64": 0.1, "bool": True,
        "string": "grün",
    }  # fmt: skip
    for name, value in scalars.items():
        getattr(writer, f"add_{name}")(f"a.{name}", value)
    writer.add_array("list", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    checkpoint = read_gguf(path)
    facts = checkpoint.facts
    assert {name: facts[f"a.{name}"] for name in scalars} == scalars
    assert facts["list"] == ["a", "", "ü"]
    assert facts["numbers"].tolist() == [1, -2, 3]
    assert (checkpoint.form, checkpoint.where, dict(checkpoint.weights)) == ("gguf", str(path), {})


_HUGE = struct.pack("<Q", 1 << 60)
_ZEROS = bytes(4096)
# Faulty files, by a word of the error.
_HOSTILE = {
    "it is empty": b"",
    "an ONNX model": b"\x08\x07\x12\x04test",
    "version 1": file_bytes(version=1),
    "version 50331648": file_bytes(version=3 << 24),
    "[1152921504606846976, 0] tensors": file_bytes(counts=(1 << 60, 0)),
    "[0, 18446744073709551615] tensors": file_bytes(counts=(0, (1 << 64) - 1), content=_ZEROS),
    "[5000, 0] tensors": file_bytes(counts=(5000, 0), content=_ZEROS),
    "does not end within 36 bytes": file_bytes(counts=(0, 1), content=b"\0" * 12, align=1),
    "does not end within": file_bytes([_HUGE + b"key"]),
    "does not end within 6": file_bytes([field("list", 9, struct.pack("<I", 8) + _HUGE)]),
    "end within 64 bytes": file_bytes([field("numbers", 9, struct.pack("<I", 4) + _HUGE)]),
    "the type 13": file_bytes([field("key", 13, _ZEROS)]),
    "the type 9": file_bytes([field("lists", 9, struct.pack("<IQ", 9, 2) + _ZEROS)]),
    "the field key twice": file_bytes([field("key", 0, b"1")] * 2),
    "invalid start byte": file_bytes([field("key", 8, text(b"\xff"))]),
    "the alignment 0": file_bytes([field("general.alignment", 4, bytes(4))]),
    "the alignment 33": file_bytes([field("general.alignment", 4, struct.pack("<I", 33))]),
    "the alignment 32": file_bytes([field("general.alignment", 8, text("32"))]),
    "the tensor a twice": file_bytes([], [tensor("a", [1]), tensor("a", [1], offset=32)], _ZEROS),
    "begins in another": file_bytes([], [tensor("a", [9]), tensor("b", [1], offset=32)], _ZEROS),
    "ends behind the file": file_bytes([], [tensor("a", [1025])], _ZEROS),
    "or ends behind the file": file_bytes([], [tensor("a", [1], offset=1 << 63)], _ZEROS),
    "begins in another or": file_bytes([], [tensor("a", [1], offset=4)], _ZEROS),
    "1152921504606846976 elements": file_bytes([], [tensor("a", [1 << 30, 1 << 30])], _ZEROS),
    "has 0 elements": file_bytes([], [tensor("a", [0])], _ZEROS),
    "has 1 elements ()": file_bytes([], [tensor("a", [])], _ZEROS),
    "has 1 elements (1, 1": file_bytes([], [tensor("a", [1] * 5, rank=1 << 31)], _ZEROS),
    "has 48 elements (48,) of Q4_0": file_bytes([], [tensor("a", [48], 2)], _ZEROS),
    "the type IQ2_XXS (16)": file_bytes([], [tensor("a", [256], 16)], _ZEROS),
    "the type - (4)": file_bytes([], [tensor("a", [256], 4)], _ZEROS),
    "the type - (4000000000)": file_bytes([], [tensor("a", [256], 4_000_000_000)], _ZEROS),
}


@pytest.mark.parametrize("word", _HOSTILE)
def test_a_hostile_file_is_refused(word: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(_HOSTILE[word])
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 10
    if word != "it is empty":
        assert word in error.value.why
        assert error.value.where == str(path)


def test_a_large_header_is_refused_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of two letters take the most memory per byte in the file: 8 times 32 MiB are
    allowed."""
    most = 1 << 19
    monkeypatch.setattr(gguf_file, "_MOST_BYTES", most)
    count = most // 10 + 1
    texts = field("list", 9, struct.pack("<IQ", 8, count))
    texts += b"".join(text(f"{n % 26 + 97:c}{n // 26 % 26 + 97:c}") for n in range(count))
    path = tmp_path / "m.gguf"
    path.write_bytes(file_bytes([texts]))
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * most
    finally:
        tracemalloc.stop()
    assert "32 MiB" in error.value.why


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", {"a": (random_blocks("Q4_1", 2, 64), "Q4_1")}, {"b": "cd"})
    data = path.read_bytes()
    # The library pads after the last tensor, whose own bytes end earlier.
    assert read_gguf(path).weights["a"].type_name == "Q4_1"
    stop = len(data) - (-80 % 32)
    for length in range(stop):
        path.write_bytes(data[:length])
        with pytest.raises(UserError):
            read_gguf(path)


def test_changed_bytes_give_an_error_or_a_checkpoint(tmp_path: Path) -> None:
    facts = {
        "llama.context_length": 64, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.bos_token_id": 3,
    }  # fmt: skip
    tensors = {"a": (random_blocks("Q6_K", 2, 256), "Q6_K"), "b": (np.ones(3, "f4"), "F32")}
    path = written(tmp_path / "m.gguf", tensors, facts)
    data = path.read_bytes()
    outcomes = {True: 0, False: 0}
    for _ in range(300):
        changed = bytearray(data)
        for place in RNG.integers(0, len(data), RNG.integers(1, 4)):
            changed[place] = RNG.integers(0, 256)
        path.write_bytes(changed)
        try:
            checkpoint = read_gguf(path)
            checkpoint.assets()
            with np.errstate(all="ignore"):
                for weight in checkpoint.weights.values():
                    weight.load()
            outcomes[True] += 1
        except UserError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 20
