"""Text is parsed to input arrays."""

import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from tcc.cli.arrays import as_taken, as_values, make_inputs, write_arrays
from tcc.errors import UserError
from tcc.runtime import ModulePort, worker
from tcc.runtime.abi import numpy_dtype, plain_dtype

X = ModulePort("x", "f32", (None, 3), "[n,3]")
IDS = ModulePort("ids", "i64", (2,), "[2]")


def test_fillings_name_shape_and_type() -> None:
    arrays = make_inputs((X, IDS), ["x=2x3xf32=1.5", "ids=4"], seed=0)
    np.testing.assert_array_equal(arrays["x"], np.full((2, 3), 1.5, np.float32), strict=True)
    assert arrays["ids"].shape == (4,)
    assert arrays["ids"].dtype == np.int64


def test_a_scalar_and_a_bool() -> None:
    arrays = make_inputs((X, IDS), ["x=f32=-inf", "ids=2xbool=1"], seed=0)
    np.testing.assert_array_equal(arrays["x"], np.float32(-np.inf).reshape(()), strict=True)
    np.testing.assert_array_equal(arrays["ids"], np.array([True, True]), strict=True)


def test_arrays_of_files_stay_unchanged(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "x.npy", array)
    arrays = make_inputs((X,), [f"x=@{tmp_path}/x.npy"], seed=0)
    np.testing.assert_array_equal(arrays["x"], array, strict=True)


@pytest.mark.parametrize(
    ("dtype", "given", "bits", "value"),
    [
        ("bf16", "1.005", 0x3F81, 1.0078125),
        ("bf16", "1.00390625", 0x3F80, 1.0),  # a tie rounds to even
        ("bf16", "nan", 0x7FC0, np.nan),
        ("f8e4m3fn", "-1.5", 0xBC, -1.5),
        ("f4e2m1", "100", 0x7, 6.0),
    ],
)
def test_floats_that_numpy_lacks_are_taken_as_bits(
    dtype: str, given: str, bits: int, value: float
) -> None:
    port = ModulePort("x", dtype, (2,), "[2]")
    arrays = make_inputs((port,), [f"x=2x{dtype}={given}"], seed=0)
    decoded = as_taken(arrays, (port,))
    assert decoded["x"].tolist() == [bits, bits]
    assert decoded["x"].dtype == plain_dtype(dtype)
    np.testing.assert_array_equal(as_values(decoded, (port,))["x"], np.full(2, value, np.float32))
    extension = decoded["x"].view(numpy_dtype(dtype)) if dtype != "f4e2m1" else decoded["x"]
    np.testing.assert_array_equal(as_values({"x": extension}, (port,))["x"], [value] * 2)


def test_arrays_of_plain_types_stay_unchanged() -> None:
    arrays = {"x": np.zeros(3), "i": np.array([1, 7], np.int8), "b": np.array([1], np.uint16)}
    ports = [
        ModulePort(n, t, (None,), "[n]") for n, t in zip("xib", ("f32", "i4", "bf16"), strict=True)
    ]
    decoded = as_taken(arrays, ports)
    assert all(decoded[name] is array for name, array in arrays.items())
    assert (
        as_values({"x": np.zeros(3)}, [ModulePort("x", "bf16", (3,), "[3]")])["x"].dtype
        == np.float64
    )


def test_strings_of_files_are_as_those_of_models(tmp_path: Path) -> None:
    texts = np.array(["a", "", "bcd"], object)
    write_arrays({"s": texts}, tmp_path)
    arrays = make_inputs(
        (ModulePort("s", "string", (3,), "[3]"),), [f"s=@{tmp_path}/s.npy"], seed=0
    )
    np.testing.assert_array_equal(arrays["s"], texts, strict=True)
    for variant in (texts, texts.astype(str)):
        worker.write_arrays(tmp_path / "sent.npz", {"s": variant})
        sent = worker.read_arrays(tmp_path / "sent.npz")
        np.testing.assert_array_equal(sent["s"], texts, strict=True)


def test_random_values_depend_on_the_seed_alone() -> None:
    first, again, other = (make_inputs((X, IDS), [], seed=seed) for seed in (1, 1, 2))
    assert first["x"].shape == (1, 3)
    assert first["x"].dtype == np.float32
    assert set(first["ids"]) <= {0, 1}
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x=",
        "y=1",
        "x=99999999999x99999999999",
        "x=" + "x".join("1" * 80),
        "x=2x3xf32=a",
        "x=2y3",
        "x=2xq7",
        "ids=2xu8=300",
        "ids=2xi64=1.5",
        "x=2xbool=2",
    ],
)
def test_bad_texts_are_the_users_error(text: str) -> None:
    with pytest.raises(UserError) as caught:
        make_inputs((X, IDS), [text], seed=0)
    assert text in caught.value.where


def test_an_input_is_given_once_and_its_name_may_hold_a_sign() -> None:
    with pytest.raises(UserError, match="twice"):
        make_inputs((X,), ["x=1x3", "x=2x3"], seed=0)
    ports = (X, ModulePort("x=2", "f32", (None,), "[n]"))
    arrays = make_inputs(ports, ["x=2x3=1", "x=2=4=7"], seed=0)
    assert (arrays["x"].shape, arrays["x=2"].shape) == ((2, 3), (4,))


def test_archives_give_their_only_array_or_a_named_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", first=np.ones(3))
    np.savez_compressed(tmp_path / "two.npz", a=np.zeros(1), b=np.full(2, 7))
    assert make_inputs((X,), [f"x=@{tmp_path}/one.npz"], seed=0)["x"].tolist() == [1, 1, 1]
    assert make_inputs((X,), [f"x=@{tmp_path}/two.npz:b"], seed=0)["x"].tolist() == [7, 7]
    for key in ("", ":c"):
        with pytest.raises(UserError) as caught:
            make_inputs((X,), [f"x=@{tmp_path}/two.npz{key}"], seed=0)
        assert "name one of its arrays, as in @file.npz:KEY: a, b" in caught.value.why


def test_the_error_for_a_foreign_file_does_not_mention_unpickling(tmp_path: Path) -> None:
    (tmp_path / "cat.txt").write_bytes(b"a cat")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "torn.npz").write_bytes(b"PK\3\4 nothing")
    for name, why in (("cat.txt", "suffixes"), ("objects.npy", "code"), ("torn.npz", "zip")):
        with pytest.raises(UserError) as caught:
            make_inputs((X,), [f"x=@{tmp_path / name}"], seed=0)
        assert why in caught.value.why
        assert "pickle" not in caught.value.why


def test_random_inputs_are_said_to_be_random(capsys: pytest.CaptureFixture[str]) -> None:
    make_inputs((X, IDS), ["ids=2=1"], seed=3)
    said = "random values of seed 3: x=1x3xf32; give others with --input\n"
    assert capsys.readouterr() == ("", said)
    make_inputs((X, IDS), ["ids=2=1", "x=2x3"], seed=3)
    assert "x=2x3;" in capsys.readouterr().err
    make_inputs((X, IDS), ["ids=2=1", "x=2x3=0"], seed=3)
    assert capsys.readouterr() == ("", "")


def test_bad_files_are_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.savez(tmp_path / "many.npz", a=np.zeros(1), b=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("absent.npy", "text.npy", "many.npz", "objects.npy"):
        with pytest.raises(UserError):
            make_inputs((X,), [f"x=@{tmp_path / name}"], seed=0)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    write_arrays({"y": np.zeros(3)}, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    minded = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        with pytest.raises(UserError, match="cannot write outputs"):
            write_arrays({"y": np.ones(3), "z": np.ones(1 << 12)}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, minded)
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]
    assert np.load(tmp_path / "y.npy").tolist() == [0, 0, 0]


def test_outputs_are_written_one_file_each(tmp_path: Path) -> None:
    arrays = {"a/b": np.zeros(2), "a:b": np.ones(3)}
    write_arrays(arrays, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0-a_b.npy", "1-a_b.npy"]
    write_arrays({"../up": np.zeros(2)}, tmp_path / "safe")
    assert [p.name for p in (tmp_path / "safe").iterdir()] == [".._up.npy"]
