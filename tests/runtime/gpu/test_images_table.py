"""The table of GPU kernels round-trips to the same bytes, and no bytes crash its reader."""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tcc.artifact import find_weights, read_manifest
from tcc.backends.artifact.gpu_binaries import (
    ALIGNMENT,
    BinaryKind,
    GpuImages,
    GpuKernel,
    GpuVariant,
    Param,
    Platform,
    TensorMap,
    encode_images,
)
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.errors import InternalError
from tcc.runtime import load

from tests.lib.fake_gpu import gpu_programs
from tests.lib.fake_gpu.fakes import Driver, Fakes, check
from tests.lib.fake_gpu.gpu_programs import Linker

HEADER_WORDS = 6
USES = ("gpu/images.c", "program.c", "instructions.c", "reader.c", "alloc.c", "status.c")
PARAMS = (Param.POINTER, Param.INT64, Param.NULL, Param.NULL)
MAPPED = (Param.POINTER, Param.POINTER, Param.TENSOR_MAP, Param.NULL, Param.TENSOR_MAP, Param.NULL)
MAPS = (
    TensorMap(0, "bf16", (4, 5, 64), (320, 64, 1), (1, 4, 64), 128),
    TensorMap(1, "f16", (1 << 20,), (1,), (8,), 0),
)


def kernel(name: str, image: bytes) -> GpuKernel:
    return GpuKernel(name, image, 1 << 16, 4, 32, PARAMS, (), False)


def variant(arch: str, form: BinaryKind) -> GpuVariant:
    """Returns a variant of three kernels, two of them in one image."""
    code = f"code of {arch}".encode()
    names = ((code, "a"), (code, "b"), (code * 30, "c"))
    return GpuVariant(arch, form, tuple(kernel(name, image) for image, name in names))


def mapped(made: GpuVariant) -> GpuVariant:
    """Returns the variant with a persistent last kernel that takes tensor maps."""
    last = replace(made.kernels[-1], params=MAPPED, maps=MAPS, stays=True)
    return replace(made, kernels=(*made.kernels[:-1], last))


CUDA = GpuImages(
    Platform.CUDA, (variant("sm_80", BinaryKind.CUBIN), mapped(variant("sm_90a", BinaryKind.CUBIN)),
                    variant("sm_80", BinaryKind.PTX)),
)  # fmt: skip
HIP = GpuImages(Platform.HIP, (variant("gfx942", BinaryKind.HSACO),), allow_host=True)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the driver of hostile_images.c with sanitizers."""
    folder = tmp_path_factory.mktemp("images")
    base = runtime_folder()
    flags = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-DTCC_TEST_FAIL_ALLOCATION",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=all")  # fmt: skip
    sources = [Path(__file__).with_name("hostile_images.c"), *(base / "src" / u for u in USES)]
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    command = ("cc", *flags, *includes, *map(str, sources), "-o", "hostile")
    subprocess.run(command, cwd=folder, check=True)
    return folder / "hostile"


def run(hostile: Path, records: Iterable[bytes], *mode: str) -> tuple[int, int]:
    """Returns (number of records that decode, number of tries)."""
    path = hostile.with_name("records")
    path.write_bytes(b"".join(struct.pack("<q", len(r)) + r for r in records))
    result = subprocess.run(
        (str(hostile), str(path), *mode), capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    decoded, of = map(int, result.stdout.split())
    return decoded, of


def sealed(data: bytes, words: list[int]) -> bytes:
    """Returns `data` with other words and a right checksum."""
    size = struct.unpack_from("<q", data, 16)[0] * 8
    strings, blob = struct.unpack_from("<q", data, 24)[0], data[size:]
    body = struct.pack(f"<{len(words) - HEADER_WORDS}q", *words[HEADER_WORDS:])
    words[4] = zlib.crc32(body + blob[:strings])
    return struct.pack(f"<{HEADER_WORDS}q", *words[:HEADER_WORDS]) + body + blob


def words_of(data: bytes) -> list[int]:
    return list(struct.unpack_from(f"<{struct.unpack_from('<q', data, 16)[0]}q", data))


def test_equal_images_give_equal_bytes_and_are_stored_once() -> None:
    data = encode_images(CUDA)
    assert data == encode_images(replace(CUDA))
    assert data != encode_images(replace(CUDA, allow_host=True))
    assert data.count(b"code of sm_90a") == 1 + 30
    assert len(data) % ALIGNMENT == 0
    assert data.index(b"code of sm_80") % ALIGNMENT == 0


def test_variants_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InternalError, match="another platform"):
        encode_images(replace(HIP, platform=Platform.CUDA))
    fewer = replace(CUDA.variants[0], kernels=CUDA.variants[0].kernels[1:])
    with pytest.raises(InternalError, match="different kernels"):
        encode_images(replace(CUDA, variants=(*CUDA.variants, fewer)))


def test_whole_tables_decode(hostile: Path) -> None:
    assert run(hostile, [encode_images(CUDA), encode_images(HIP)]) == (2, 2)
    fewer = [replace(v, kernels=v.kernels[1:]) for v in CUDA.variants]
    assert run(hostile, [encode_images(replace(CUDA, variants=tuple(fewer)))]) == (0, 1)


def test_maps_that_no_driver_takes_are_refused(hostile: Path) -> None:
    """Each case breaks one rule: a buffer that does not exist, uneven rows, rows wider than a
    swizzle, ..."""
    wrong = (
        {"buffer": 2}, {"sizes": (4, 5, 0)}, {"sizes": (4, 5, 1 << 32)}, {"strides": (320, 60, 1)},
        {"strides": (1 << 39, 64, 1)}, {"strides": (320, 0, 1)},
        {"box": (1, 4, 65)}, {"box": (1, 4, 128)}, {"dtype": "f32"},
        {"box": (1, 257, 64)}, {"box": (0, 4, 64)},
        {"sizes": (1,) * 6, "strides": (8,) * 5 + (1,), "box": (8,) * 6},
        {"sizes": (), "strides": (), "box": ()},
    )  # fmt: skip
    for fields in wrong:
        maps = (replace(MAPS[0], **fields), MAPS[1])
        bad = replace(CUDA.variants[1].kernels[-1], maps=maps)
        kernels = (*CUDA.variants[1].kernels[:-1], bad)
        images = replace(CUDA, variants=(replace(CUDA.variants[1], kernels=kernels),))
        assert run(hostile, [encode_images(images)]) == (0, 1), fields
    hip = replace(HIP, variants=(mapped(HIP.variants[0]),))
    assert run(hostile, [encode_images(hip)]) == (0, 1)


def test_cut_and_flipped_tables_are_refused(hostile: Path) -> None:
    data = encode_images(CUDA)
    front = data.index(b"code of sm_80")
    records = [data[:n] for n in range(len(data))]
    for at in range(front):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        records.append(bytes(flipped))
    assert run(hostile, records)[0] == 0


def test_every_word_replaced_never_crashes(hostile: Path) -> None:
    values = (0, 1, 2, 3, 64, -1, 1 << 20, 1 << 31, (1 << 62) + 3, (1 << 63) - 1, -(1 << 63))
    records = []
    for images in (CUDA, HIP):
        data = encode_images(images)
        for at in range(len(words_of(data))):
            for value in values:
                words = words_of(data)
                words[at] = value
                records.append(sealed(data, words))
    decoded, of = run(hostile, records)
    assert 0 < decoded < of


def test_random_damage_never_crashes(hostile: Path) -> None:
    rng = random.Random(4)
    data = encode_images(CUDA)
    records = []
    for _ in range(2000):
        words = words_of(data)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(2, len(words))
            words[at] = rng.choice((words[rng.randrange(6, len(words))], rng.randrange(-3, 70)))
        records.append(sealed(data, words))
    assert run(hostile, records)[1] == 2000


def test_every_failing_allocation_is_reported_and_leaks_nothing(hostile: Path) -> None:
    decoded, of = run(hostile, [encode_images(CUDA)], "fail")
    assert decoded == 1
    assert of > 10


def test_the_manifest_says_where_the_kernels_are_and_for_what(linked: Linker, fakes: Fakes) -> None:
    path = linked("mlp", Platform.CUDA)
    manifest = read_manifest(path)
    table = encode_images(gpu_programs.images(fakes.kernels, Platform.CUDA))
    assert manifest["variants"][0]["gpu"] == {
        "platform": "cuda",
        "offset": 256,
        "bytes": len(table),
        "images": [{"arch": "sm_90", "form": "cubin", "needs": ""}],
    }
    weights = find_weights(path, manifest)
    assert weights is not None
    data = path.read_bytes()[weights.offset : weights.offset + weights.size]
    assert data == gpu_programs.WEIGHTS.tobytes() + table


def test_a_side_file_holds_the_kernels_too(fakes: Fakes, tmp_path: Path) -> None:
    program = gpu_programs.mlp()
    path = tmp_path / "side.so"
    images = gpu_programs.images(fakes.kernels, Platform.CUDA)
    variant = gpu_programs.gpu_variant(program, images, [gpu_programs.WEIGHTS])
    link_artifact([variant], {"tcc": "test"}, "mini", path, side_file=True)
    values = np.linspace(-1, 1, 9, dtype=np.float32)

    def test(_driver: Driver) -> None:
        module = load(path)
        assert np.array_equal(module(values), np.maximum(values, 0) + gpu_programs.WEIGHTS[:9])
        del module

    check(fakes, Platform.CUDA, test)
