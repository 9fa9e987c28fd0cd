"""The reader refuses files that are no models, and restricts from where it reads external
weights."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model, model_file
from tcc.frontends.onnx.pieces import PieceModel
from tcc.frontends.onnx.reader import read_model
from tcc.frontends.onnx.tensors import TensorReader

from tests.lib.import_oracle import check, model_of

_PLAIN = "g (float[2] x) => (float[2] y) { y = Neg (x) }"


def _bytes(**changes: object) -> bytes:
    model = model_of(_PLAIN)
    for name, value in changes.items():
        setattr(model, name, value)
    return model.SerializeToString()


def _opset(version: int) -> bytes:
    model = model_of(_PLAIN)
    model.opset_import[0].version = version
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\x00", "not an ONNX model"),
        (b"<html>no</html>", "not an ONNX model"),
        (b"PK\x03\x04" + bytes(64), "not an ONNX model"),
        (_bytes()[:-9], "not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"\x08\x08", "not an ONNX model"),
        (_bytes(ir_version=999), "IR version 999 is not supported"),
        (_bytes(ir_version=1), "IR version 1 is not supported"),
        (_opset(9999), "opset 9999 is not supported"),
        (_opset(0), "opset 0 is not supported"),
        (b"\x0a" * 5000, "not an ONNX model"),
    ],
)
def test_files_that_are_no_models_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        read_model(path)
    assert error.value.where == str(path)
    with pytest.raises(UserError, match=message):
        read_model(data)


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "nul"])
def test_paths_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("m\0" if kind == "nul" else "m.onnx")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(UserError, match=r"the model (cannot be read|is not a file)"):
        read_model(path)


def test_files_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    path = tmp_path / "m.onnx"
    path.write_bytes(_bytes())
    monkeypatch.setattr(mmap, "mmap", refuse)  # as for files of /sys
    with pytest.raises(UserError, match="the model cannot be read") as error:
        read_model(path)
    assert error.value.why == "No such device"


# ---- tensors -------------------------------------------------------------------------------------

_ALL = ("float32 float64 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool").split()


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", _ALL)
def test_every_element_type_reads_back(dtype: str, raw: bool) -> None:
    array = np.array([[0, 1, 2], [100, 3, 1]]).astype(dtype)
    if array.dtype.kind in "if" and dtype != "bool":
        array[0, 0] = -array[1, 0]
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    data = array.tobytes() if raw else array.ravel()
    tensor = helper.make_tensor("t", number, array.shape, data, raw=raw)
    array_read, kind = TensorReader(None).array(tensor)
    assert array_read.dtype == array.dtype == kind.carrier
    np.testing.assert_array_equal(array_read, array)


def test_bfloat16_reads_as_its_exact_f32() -> None:
    bits = np.array([0x3FC0, 0xC020, 0x7F80], np.uint16)
    tensor = helper.make_tensor("t", TensorProto.BFLOAT16, [3], bits.tobytes(), raw=True)
    array, kind = TensorReader(None).array(tensor)
    assert kind.name == "bf16"
    np.testing.assert_array_equal(array, np.array([1.5, -2.5, np.inf], np.float32))


def _broken(change: Callable[[onnx.TensorProto], object]) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones((2, 3), np.float32), "t")
    change(tensor)
    return tensor


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.dims.__setitem__(0, -1),
        lambda t: t.dims.__setitem__(0, 3),
        lambda t: t.dims.extend([1] * 100),
        lambda t: t.dims.extend([1 << 62, 4]),
        lambda t: (t.dims.extend([0, 1 << 62, 4]), t.ClearField("raw_data")),
        lambda t: setattr(t, "raw_data", t.raw_data[:-1]),
        lambda t: t.float_data.append(1.0),
        lambda t: setattr(t, "data_type", 0),
        lambda t: setattr(t, "data_type", 999),
        lambda t: setattr(t, "data_type", TensorProto.STRING),
    ],
)
def test_tensors_that_contradict_themselves(change: Callable[[onnx.TensorProto], object]) -> None:
    with pytest.raises(UserError):
        TensorReader(None).array(_broken(change))


def test_sparse_tensors_are_filled_in() -> None:
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "w")
    for indices in (np.array([1, 5]), np.array([[0, 1], [1, 2]])):
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
        array, _ = TensorReader(None).dense(sparse)
        np.testing.assert_array_equal(array, [[0, 1.5, 0], [0, 0, 2.5]])
    for indices in (np.array([1, 6]), np.array([-1, 0]), np.array([[0, 0], [0, 3]])):
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
        with pytest.raises(UserError):
            TensorReader(None).dense(sparse)
    for wrong in (np.array([0.0, 1.0]), np.array([True, False]), np.array([1, 5], np.int32)):
        sparse.indices.CopyFrom(numpy_helper.from_array(wrong))
        with pytest.raises(UserError, match="wrong element type"):
            TensorReader(None).dense(sparse)


@pytest.mark.parametrize("dims", [[0, 1 << 62, 4], [1] * 65, [2, -3], [1 << 31, 2]])
def test_sparse_tensors_of_impossible_shapes(dims: list[int]) -> None:
    sparse = onnx.SparseTensorProto(dims=dims)
    sparse.values.CopyFrom(numpy_helper.from_array(np.zeros(0, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(0, np.int64)))
    with pytest.raises(UserError, match="impossible shape"):
        TensorReader(None).dense(sparse)


# ---- external data -------------------------------------------------------------------------------

_WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def _external(**entries: str) -> onnx.ModelProto:
    model = model_of(
        "g (float[2, 3] x) => (float[2, 3] y) <float[2, 3] w = {0, 0, 0, 0, 0, 0}> "
        "{ y = Add (x, w) }"
    )
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def _save(folder: Path, **entries: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(_external(**entries).SerializeToString())
    return folder / "m.onnx"


def test_external_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "w.bin").write_bytes(b"12345678" + _WEIGHT.tobytes() + b"tail")
    path = _save(tmp_path, location="deep/w.bin", offset="8", length="24")
    graph = load_model(path)
    (value,) = graph.constants
    np.testing.assert_array_equal(graph.constant(value), _WEIGHT)


@pytest.mark.parametrize(
    "location", ["./w.bin", ".//w.bin", "deep/./w.bin", "deep//w.bin", "./deep/././w.bin"]
)
def test_a_dot_or_nothing_between_slashes_names_the_same_folder(
    location: str, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    data = tmp_path / ("deep/w.bin" if "deep" in location else "w.bin")
    data.write_bytes(_WEIGHT.tobytes())
    path = _save(tmp_path, location=location)
    _check_read(path)
    feeds = {"x": np.ones((2, 3), np.float32)}
    (output,) = ort.InferenceSession(path).run(None, feeds)
    np.testing.assert_array_equal(output, _WEIGHT + 1)


@pytest.mark.parametrize(
    "location",
    ["../out.bin", "a/../../out.bin", "./../out.bin", "a/../w.bin", "./" * 3000 + "..",
     "/etc/hostname", "//w.bin", "file:///etc/hostname", "", ".", "./", "w.bin/", "w.bin/.",
     "w.bin\0", "./w.bin\0", "a\\w.bin", ".\\w.bin", "absent.bin", "link.bin", "./link.bin",
     "linked/out.bin", "hard.bin", "pipe", "dir", "./dir", "empty.bin", "*/_ORT_MEM_ADDR_/*"],
)  # fmt: skip
def test_external_data_stay_in_the_models_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "out.bin").write_bytes(_WEIGHT.tobytes())
    folder = tmp_path / "model"
    path = _save(folder, location=location)
    (folder / "a").mkdir()
    (folder / "w.bin").write_bytes(_WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "out.bin")
    (folder / "linked").symlink_to(tmp_path)
    os.link(tmp_path / "out.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    (folder / "empty.bin").write_bytes(b"")
    with pytest.raises(UserError, match="external data cannot be used") as error:
        load_model(path)
    assert "initializer w" in error.value.where


def _hub(root: Path) -> Path:
    """Writes a model in the layout of Hugging Face's cache, where names are links to files named by
    a hash."""
    hub = root / "models--x"
    snapshot = hub / "snapshots" / "1234" / "onnx"
    snapshot.mkdir(parents=True)
    (hub / "blobs").mkdir()
    model = _external(location="model.onnx_data").SerializeToString()
    for name, hashed, data in (("", "aa", model), ("_data", "bb", _WEIGHT.tobytes())):
        (hub / "blobs" / hashed).write_bytes(data)
        (snapshot / f"model.onnx{name}").symlink_to(Path("../../../blobs") / hashed)
    return snapshot / "model.onnx"


def _check_read(path: Path) -> None:
    graph = load_model(path)
    (value,) = graph.constants
    np.testing.assert_array_equal(graph.constant(value), _WEIGHT)


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    path = _hub(tmp_path)
    _check_read(path)
    (tmp_path / "mine").symlink_to(path.parent)
    _check_read(tmp_path / "mine" / "model.onnx")
    piece = tmp_path / "piece.onnx"
    PieceModel(path, {}).write(piece, [0], {"x": np.ones((2, 3), np.float32)}, ["y"])
    assert onnx.load(piece).graph.initializer[0].raw_data == _WEIGHT.tobytes()


def test_links_inside_the_models_folder(tmp_path: Path) -> None:
    path = _save(tmp_path / "model", location="w.bin")
    (path.parent / "deep").mkdir()
    (path.parent / "deep" / "w.bin").write_bytes(_WEIGHT.tobytes())
    (path.parent / "w.bin").symlink_to("deep/w.bin")
    _check_read(path)


@pytest.mark.parametrize("target", ["secret", "blobs/deep/secret", "/etc/hostname", "/dev/zero"])
def test_links_that_leave_the_cache(target: str, tmp_path: Path) -> None:
    path = _hub(tmp_path)
    (tmp_path / "models--x" / "blobs" / "deep").mkdir()
    for place in ("secret", "blobs/deep/secret"):
        (tmp_path / "models--x" / place).write_bytes(_WEIGHT.tobytes())
    data = path.with_name("model.onnx_data")
    data.unlink()
    data.symlink_to(tmp_path / "models--x" / target)
    with pytest.raises(UserError, match="leads out of the model's folder"):
        load_model(path)


def test_a_link_that_changes_after_the_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader reads the file that it checked, wherever the name leads later."""
    path = _hub(tmp_path)
    data = path.with_name("model.onnx_data")
    (tmp_path / "secret").write_bytes(bytes(24))

    def look(place: str) -> str:
        target = readlink(place)
        data.unlink()
        data.symlink_to(tmp_path / "secret")
        return target

    readlink = os.readlink
    monkeypatch.setattr(model_file.os, "readlink", look)
    _check_read(path)


def test_packages_whose_files_all_have_several_names(tmp_path: Path) -> None:
    """Installers link every file from their cache, so all files of a package may have several
    names; a single file with two names is refused."""
    path = _save(tmp_path / "model", location="w.bin")
    (tmp_path / "w").write_bytes(_WEIGHT.tobytes())
    os.link(tmp_path / "w", path.parent / "w.bin")
    with pytest.raises(UserError, match="regular file with one name"):
        load_model(path)
    os.link(path, tmp_path / "m")
    _check_read(path)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-1"},
        {"offset": "4", "length": "24"},
        {"offset": "18446744073709551615"},
        {"offset": "1e1"},
        {"offset": "٣"},
        {"length": "-24"},
        {"length": "23"},
        {"length": "1000000000000000"},
        {"loader": "x"},
    ],
)
def test_external_ranges_are_checked(entries: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(_WEIGHT.tobytes())
    with pytest.raises(UserError, match="external data cannot be used"):
        load_model(_save(tmp_path, location="w.bin", **entries))


def test_external_data_of_a_model_in_memory_cannot_be_found() -> None:
    with pytest.raises(UserError, match="lie in another file") as error:
        load_model(_external(location="w.bin"))
    assert "path" in error.value.hint


def test_large_weights_of_a_file_are_views(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((300, 100)).astype(np.float32)
    model = _with_weight(weight)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load_model(path)
    (value,) = graph.constants
    array = graph.constant(value)
    assert array is not None
    assert not array.flags.owndata
    check(model, {"x": np.ones((2, 300), np.float32)}, graph=graph)


def _with_weight(weight: np.ndarray) -> onnx.ModelProto:  # type: ignore[type-arg]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, weight.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
