"""Pictures, sounds and raw files become the input arrays that NumPy alone computes."""

from __future__ import annotations

import io
import sys
import wave
import zlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tcc.runtime import ModulePort, RuntimeFailure
from tcc.runtime.input_settings import Settings, read_settings
from tcc.runtime.inputs import folder_files, read_array, read_input
from tcc.runtime.reports import InputError, MissingLibraryError

images = pytest.importorskip("PIL.Image", reason="the extra io (pillow) is not installed")


def port(text: str, dtype: str = "f32", name: str = "x") -> ModulePort:
    """Returns a port of a shape such as `1x3x4x?`."""
    sizes = tuple(None if size == "?" else int(size) for size in text.split("x") if size)
    return ModulePort(name, dtype, sizes, f"[{text.replace('x', ',')}]")


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> Any:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def saved(path: Path, array: Any, **options: Any) -> str:
    images.fromarray(array).save(path, **options)
    return str(path)


# ---- pictures -----------------------------------------------------------------------------------


def test_channels_and_layouts_follow_the_port(tmp_path: Path) -> None:
    array = pixels(5, 7)
    file = saved(tmp_path / "a.png", array)
    chw = array.transpose(2, 0, 1).astype(np.float32)
    for text, settings, expected in (
        ("1x3x5x7", "", chw[None]),
        ("1x3x5x7", ":bgr", chw[None, ::-1]),
        ("1x5x7x3", "", array[None].astype(np.float32)),
        ("3x5x7", "", chw),
        ("?x3x?x?", "", chw[None]),
        ("?x?x?x?", ":layout=nhwc,bgr", array[None, :, :, ::-1].astype(np.float32)),
    ):
        value = read_input(port(text), file + settings)
        np.testing.assert_array_equal(value, expected, strict=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i16", "u8"])
def test_values_are_scaled_moved_and_divided(dtype: str, tmp_path: Path) -> None:
    array = pixels(6, 8)
    file = saved(tmp_path / "a.png", array)
    settings = ":scale=1/2,mean=[1,2,3],std=[2,1,0.5]" if dtype != "u8" else ""
    value = read_input(port("1x6x8x3", dtype), file + settings)
    numbers = array.astype(np.float64)
    if settings:
        numbers = (numbers / 2 - [1, 2, 3]) / [2, 1, 0.5]
    kind = np.dtype({"f": "float", "i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
    assert value.dtype == kind
    exact = np.rint(numbers) if kind.kind in "iu" else numbers
    np.testing.assert_allclose(value[0], exact, rtol=2e-3 if dtype == "f16" else 1e-6, atol=1e-6)


def test_grey_alpha_palette_and_deep_pictures(tmp_path: Path) -> None:
    grey = pixels(6, 5, 1)
    file = saved(tmp_path / "grey.png", grey)
    three = read_input(port("1x3x6x5", "u8"), file)
    np.testing.assert_array_equal(three, np.broadcast_to(grey, (1, 3, 6, 5)))
    for text in ("1x1x6x5", "1x6x5x1"):
        assert read_input(port(text, "u8"), file).reshape(6, 5).tolist() == grey.tolist()
    assert read_input(port("6x5", "u8"), file).tolist() == grey.tolist()
    rgba = pixels(6, 5, 4)
    file = saved(tmp_path / "alpha.png", rgba)
    np.testing.assert_array_equal(read_input(port("1x6x5x3", "u8"), file)[0], rgba[:, :, :3])
    np.testing.assert_array_equal(read_input(port("1x6x5x4", "u8"), file)[0], rgba)
    palette = images.fromarray(pixels(6, 5)).quantize(8)
    palette.save(tmp_path / "palette.gif")
    expected = np.asarray(palette.convert("RGB"))
    value = read_input(port("1x6x5x3", "u8"), str(tmp_path / "palette.gif"))
    np.testing.assert_array_equal(value[0], expected)
    deep = np.array([[0, 30000, 65535]], np.uint16)
    file = saved(tmp_path / "deep.png", deep)
    assert read_input(port("1x3", "u8"), file).tolist() == [[0, 30000 // 257, 255]]


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (3, lambda a: a[::-1, ::-1]),
        (6, lambda a: np.rot90(a, -1)),
        (8, lambda a: np.rot90(a, 1)),
        (2, lambda a: a[:, ::-1]),
    ],
)
def test_a_rotated_photo_stands_upright(orientation: int, turned: Any, tmp_path: Path) -> None:
    array = pixels(6, 8)
    exif = images.Exif()
    exif[0x0112] = orientation
    file = saved(tmp_path / "a.png", array, exif=exif)
    expected = turned(array)
    height, width = expected.shape[:2]
    value = read_input(port(f"1x{height}x{width}x3", "u8"), file)
    np.testing.assert_array_equal(value[0], expected)


def test_a_letterbox_keeps_proportions(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.png", np.full((10, 20, 3), 200, np.uint8))
    for settings, top, height in (("letterbox=7", 0, 4), ("letterbox=7,centre", 2, 4)):
        value = read_input(port("1x3x8x8", "u8"), f"{file}:{settings}")
        expected = np.full((1, 3, 8, 8), 7)
        expected[:, :, top : top + height] = 200
        np.testing.assert_array_equal(value, expected)
    tall = saved(tmp_path / "b.png", np.full((33, 7, 3), 90, np.uint8))
    value = read_input(port("1x3x16x16", "u8"), f"{tall}:letterbox")
    assert (value[0, 0] == 90).sum(axis=1).tolist() == [7 * 16 // 33] * 16


def test_a_crop_takes_the_middle(tmp_path: Path) -> None:
    array = pixels(6, 11)
    file = saved(tmp_path / "a.png", array)
    value = read_input(port("1x6x6x3", "u8"), f"{file}:crop")
    np.testing.assert_array_equal(value[0], array[:, 2:8])
    value = read_input(port("1x5x5x3", "u8"), f"{file}:resize=6,crop")
    np.testing.assert_array_equal(value[0], array[0:5, 3:8])


def test_sizes_that_the_model_leaves_open(tmp_path: Path) -> None:
    array = pixels(6, 9)
    file = saved(tmp_path / "a.png", array)
    free = port("1x3x?x?", "u8")
    assert read_input(free, file).shape == (1, 3, 6, 9)
    halves = array.reshape(3, 2, 9, 3)
    value = read_input(free, f"{file}:resize=3x9,filter=box")
    exact = halves.astype(float).mean(axis=1).transpose(2, 0, 1)
    assert np.abs(value[0] - exact).max() <= 0.5
    assert read_input(free, f"{file}:resize=12").shape == (1, 3, 12, 18)
    assert read_input(free, f"{file}:resize=8x8,letterbox").shape == (1, 3, 8, 8)


def test_a_batch_takes_a_file_for_each_entry(tmp_path: Path) -> None:
    arrays = [pixels(6, 5, seed=n) for n in range(2)]
    files = [saved(tmp_path / f"{n}.png", a) for n, a in enumerate(arrays)]
    value = read_input(port("2x6x5x3", "u8"), files)
    np.testing.assert_array_equal(value, arrays)
    assert read_input(port("?x6x5x3", "u8"), files).shape == (2, 6, 5, 3)
    for chosen_files in (files[:1], [*files, files[0]]):
        with pytest.raises(InputError, match=r"2 pictures at once|3 files are given"):
            read_input(port("2x6x5x3", "u8"), chosen_files)


def test_damaged_pictures_are_refused(tmp_path: Path) -> None:
    data = Path(saved(tmp_path / "a.png", pixels(64, 64))).read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "eps.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name, words in (("cut", "damaged"), ("text", "no picture"), ("eps", "no picture")):
        (path,) = tmp_path.glob(f"{name}.*")
        with pytest.raises(InputError, match=words):
            read_input(port("1x3x64x64"), str(path))


def file_of_kind(suffix: str) -> bytes:
    """Returns the bytes of a valid file."""
    buffer = io.BytesIO()
    if suffix == "npy":
        np.save(buffer, np.zeros((2, 3)))
    elif suffix == "npz":
        np.savez_compressed(buffer, a=np.zeros((2, 3)))
    elif suffix in ("wav", "flac", "ogg"):
        soundfile = pytest.importorskip("soundfile", reason="the extra io is not installed")
        soundfile.write(buffer, np.sin(np.arange(999) / 9), 16000, format=suffix)
    else:
        kind = {"jpg": "jpeg"}.get(suffix, suffix)
        images.fromarray(pixels(20, 30)).save(buffer, kind)
    return buffer.getvalue()


SUFFIXES = ("png", "jpg", "gif", "bmp", "webp", "ppm", "wav", "flac", "ogg", "npy", "npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_of_every_kind_give_one_kind_of_error(suffix: str, tmp_path: Path) -> None:
    data = file_of_kind(suffix)
    is_sound = suffix in ("wav", "flac", "ogg")
    path = tmp_path / f"a.{suffix}"
    rng = np.random.default_rng(1)
    for _ in range(300):
        broken = bytearray(data)
        # Half of the changes hit the header.
        most = min(64, len(data)) if rng.integers(0, 2) else len(data)
        for place in rng.integers(0, most, rng.integers(1, 5)):
            broken[place] = rng.integers(0, 256)
        path.write_bytes(broken[: rng.integers(1, len(data))] if rng.random() < 0.2 else broken)
        with suppress(InputError):  # any other error fails the test
            if is_sound:
                read_input(port("?"), f"{path}:rate=16000")
            else:
                read_input(port("1x3x8x8"), str(path))


def png_header(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    images.new("1", (1, 1)).save(buffer, "png")
    data = bytearray(buffer.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("size", [(40_000, 40_000), (9_000, 9_000), (12_000, 12_000)])
def test_huge_pictures_are_refused_before_they_are_decoded(
    size: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(png_header(*size))
    with pytest.raises(InputError, match="too large"):
        read_input(port("1x3x8x8"), str(tmp_path / "a.png"))


@pytest.mark.parametrize(
    ("shape", "dtype", "settings", "words"),
    [
        ("?x?x?x?", "f32", "", "does not tell the axis"),
        ("1x3x7x3", "f32", "", "does not tell the axis"),
        ("1x3x7x7", "f32", "layout=chw", "has 3 axes"),
        ("1x1x7x7", "f32", "bgr", "takes 1 channels"),
        ("1x2x7x7", "f32", "layout=nchw", "takes 2 channels"),
        ("1x3x7x7", "i8", "", "do not fit i8"),
        ("1x3x7x7", "bool", "", "takes bool"),
        ("1x3x7x7", "f32", "mean=[1,2]", "mean has 2 numbers"),
        ("1x3x7x7", "f32", "resize=5x5", "is not the input's size"),
        ("1x3x7x7", "f32", "resize=5", "leaves the longer edge open"),
        ("1x3x7x7", "f32", "resize=2,crop", "too small for the crop"),
        ("1x3x?x?", "f32", "letterbox", "leaves the size of the picture open"),
        ("1x3x7x7", "f32", "rate=3", "no setting of a picture"),
        ("1x3x?x?", "f32", "resize=60000x60000", "too large"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    shape: str, dtype: str, settings: str, words: str, tmp_path: Path
) -> None:
    file = saved(tmp_path / "a.png", np.full((9, 9, 3), 255, np.uint8))
    with pytest.raises(InputError, match=words):
        read_input(port(shape, dtype), f"{file}:{settings}" if settings else file)


def test_without_pillow_a_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "a.png", pixels(4, 4))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingLibraryError, match=r"tcc\[io\]"):
        read_input(port("1x3x7x7"), file)


# ---- settings -----------------------------------------------------------------------------------


def test_settings_are_read_from_a_text() -> None:
    settings = read_settings("bgr,letterbox=114,mean=[1,-2,3e1],std=2,scale=1/4,nhwc", "here")
    assert settings == Settings(
        order="bgr", layout="nhwc", letterbox=114, mean=(1, -2, 30), std=(2,), scale=0.25
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bgrr", "no setting 'bgrr'"),
        ("", "no setting ''"),
        ("rgb,bgr", "given twice"),
        ("std=[1,0,1]", "divides by zero"),
        ("std=0", "divides by zero"),
        ("scale=0", "makes all values equal"),
        ("scale=1/0", "no number"),
        ("mean=nan", "too large, or no number"),
        ("mean=1e999", "too large, or no number"),
        ("mean=[1,2", "bracket"),
        ("scale=" + "9" * 4000, "no number"),
        ("letterbox=300", "not from 0 to 255"),
        ("letterbox,crop", "exclude"),
        ("letterbox,resize=5", "exclude"),
        ("centre", "letterbox"),
        ("resize=0", "no whole number"),
        ("resize=1x2x3", "more than a height and a width"),
        ("resize=99999999", "no whole number"),
        ("rate=16000,bgr", "mixed"),
        ("filter=best", "none of"),
        ("crop=maybe", "neither true nor false"),
    ],
)
def test_bad_settings_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_settings(text, "a.png")
    assert caught.value.where == "a.png"
    assert isinstance(caught.value, RuntimeFailure)


# ---- sounds -------------------------------------------------------------------------------------


def wav(path: Path, samples: Any, rate: int = 16000) -> str:
    """Writes 16-bit samples with one column per channel."""
    array = np.asarray(samples, "<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(array.shape[1] if array.ndim > 1 else 1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(array.tobytes())
    return str(path)


def test_samples_are_read_in_windows(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="the extra io (soundfile) is not installed")
    samples = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, 1000)
    file = wav(tmp_path / "a.wav", samples)
    exact = samples / 32768
    for text, settings, part in (
        ("1x?", "rate=16000", slice(0, 1000)),
        ("?", "rate=16000", slice(0, 1000)),
        ("1x1x100", "rate=16000,start=300,window=100", slice(300, 400)),
        ("1x700", "rate=16000,start=300", slice(300, 1000)),
    ):
        value = read_input(port(text), f"{file}:{settings}")
        assert value.dtype == np.float32
        assert value.ndim == len(text.split("x"))
        np.testing.assert_allclose(value.reshape(-1), exact[part], atol=1e-7)
    value = read_input(port("1x?", "i16"), f"{file}:rate=16000,scale=32768")
    np.testing.assert_array_equal(value[0], samples)


def test_channels_of_a_sound(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="the extra io (soundfile) is not installed")
    samples = np.random.default_rng(0).integers(-99, 99, (50, 2))
    file = wav(tmp_path / "a.wav", samples)
    value = read_input(port("1x2x50"), f"{file}:rate=16000,scale=32768")
    np.testing.assert_array_equal(value[0], samples.T)
    value = read_input(port("1x50"), f"{file}:rate=16000,channel=1,scale=32768")
    np.testing.assert_array_equal(value[0], samples[:, 1])


@pytest.mark.parametrize(
    ("shape", "settings", "words"),
    [
        ("1x50", "", "rate is unknown"),
        ("1x50", "rate=8000", "another rate"),
        ("1x20", "rate=16000", "has 50 samples"),
        ("1x60", "rate=16000", "too short"),
        ("1x?", "rate=16000,start=50", "too short"),
        ("1x20", "rate=16000,window=30", "not the input's length"),
        ("1x50", "rate=16000,channel=1", "no channel 1"),
        ("1x2x50", "rate=16000", "has 1 channels"),
        ("3x1x50", "rate=16000", "more than a sound"),
        ("", "rate=16000", "one number"),
        ("1x50", "bgr", "no setting of a sound"),
    ],
)
def test_sounds_that_do_not_fit_are_refused(
    shape: str, settings: str, words: str, tmp_path: Path
) -> None:
    pytest.importorskip("soundfile", reason="the extra io (soundfile) is not installed")
    file = wav(tmp_path / "a.wav", np.arange(50))
    with pytest.raises(InputError, match=words):
        read_input(port(shape), f"{file}:{settings}" if settings else file)


def test_damaged_sounds_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="the extra io (soundfile) is not installed")
    data = Path(wav(tmp_path / "a.wav", np.arange(50))).read_bytes()
    for number, content in enumerate((data[:-20], b"RIFF", b"", b"no sound at all", data[:30])):
        path = tmp_path / f"{number}.wav"
        path.write_bytes(content)
        with pytest.raises(InputError, match="no sound, or is damaged"):
            read_input(port("1x?"), f"{path}:rate=16000")


# ---- arrays, standard input, folders ------------------------------------------------------------


def test_raw_elements(tmp_path: Path) -> None:
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    file = tmp_path / "a.bin"
    file.write_bytes(array.tobytes())
    np.testing.assert_array_equal(read_input(port("2x3", "i32"), str(file)), array, strict=True)
    assert read_input(port("?x3", "i32"), str(file)).tolist() == array.tolist()
    assert read_input(port("12", "bf16"), str(file)).dtype == np.uint16
    (tmp_path / "x").write_bytes(array.tobytes())
    np.testing.assert_array_equal(
        read_input(port("2x3", "i32"), f"{tmp_path / 'x'}:format=bin"), array
    )
    for shape, dtype, words in (
        ("2x4", "i32", "another size"),
        ("2x2", "i32", "another size"),
        ("?x5", "i32", "another size"),
        ("?x?", "i32", "do not follow"),
        ("?x0", "i32", "do not follow"),
        ("24", "bool", "neither 0 nor 1"),
        ("48", "i4", "no raw form"),
        ("3", "string", "no raw form"),
    ):
        with pytest.raises(InputError, match=words):
            read_input(port(shape, dtype), str(file))
    with pytest.raises(InputError, match="kind of the file is unknown"):
        read_input(port("2x3", "i32"), str(tmp_path / "x"))


def test_standard_input_is_read_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(3, dtype=np.float32)
    npy = io.BytesIO()
    np.save(npy, array)
    picture = io.BytesIO()
    images.fromarray(pixels(2, 2)).save(picture, "png")

    def feed(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    feed(npy.getvalue())
    np.testing.assert_array_equal(read_input(port("3"), "-"), array, strict=True)
    feed(array.tobytes())
    np.testing.assert_array_equal(read_input(port("3"), "-:bin"), array, strict=True)
    feed(picture.getvalue())
    np.testing.assert_array_equal(read_input(port("1x2x2x3", "u8"), "-"), [pixels(2, 2)])
    feed(array.tobytes())
    with pytest.raises(InputError, match="kind of the file is unknown"):
        read_input(port("3"), "-")


def test_names_with_colons_are_files(tmp_path: Path) -> None:
    array = pixels(3, 3)
    file = saved(tmp_path / "a:bgr.png", array)
    np.testing.assert_array_equal(read_input(port("1x3x3x3", "u8"), f"{file}:nhwc"), [array])
    np.testing.assert_array_equal(read_array(str(_npz(tmp_path)) + ":k:1"), [1, 2])


def _npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", **{"k:1": np.array([1, 2]), "other": np.zeros(1)})
    return folder / "a.npz"


def test_settings_are_not_for_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(InputError, match="for pictures and sounds"):
        read_input(port("3"), f"{tmp_path / 'a.npy'}:bgr")
    value = read_input(port("3"), str(tmp_path / "a.npy"), Settings(order="bgr"))
    assert value.tolist() == [0, 0, 0]


def test_a_folder_gives_its_files_by_name(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    expected = [str(tmp_path / name) for name in ("a.png", "b.png")]
    assert folder_files(str(tmp_path)) == expected
    assert folder_files(f"{tmp_path}:bgr") == [f"{name}:bgr" for name in expected]
    assert folder_files(str(tmp_path / "a.png")) is None
    with pytest.raises(InputError, match="has no files"):
        folder_files(str(tmp_path / "inner"))
    with pytest.raises(InputError, match="no input of one run"):
        read_input(port("3"), str(tmp_path))
