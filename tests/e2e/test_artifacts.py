"""Artifacts of one real model: equal bytes, equal bits for any number of threads, refusals, other
interfaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli, runtime
from tcc.artifact import read_listings, read_manifest
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options
from tcc.schedule.cpu.machine_file import machine_digest, machine_text
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.target import isa_feature

from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

CLIENT = Path(__file__).with_name("client.c")
node = helper.make_node

# All tests of one artifact run in one worker, which compiles it once.
pytestmark = pytest.mark.xdist_group("artifacts")


def network(seed: int = 0) -> onnx.ModelProto:
    """Returns a convolution, a pooling, a softmax and a layer norm over a symbolic batch."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    return model_of(
        [
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", ["m"], ["f"]),
            node("Gemm", ["f", "v"], ["g"]),
            node("LayerNormalization", ["g", "gain"], ["l"]),
            node("Softmax", ["l"], ["y"], axis=-1),
            node("ReduceMean", ["m", "axes"], ["z"], keepdims=0),
        ],
        [value("x", FLOAT, ["n", 3, 16, 16])],
        [value("y", FLOAT, ["n", 50]), value("z", FLOAT, ["n", 24])],
        {
            "w": normal(24, 3, 3, 3),
            "b": normal(24),
            "v": normal(24 * 64, 50),
            "gain": normal(50),
            "axes": np.array([2, 3]),
        },
    )


def image(batch: int = 4) -> Array:
    return np.random.default_rng(batch).standard_normal((batch, 3, 16, 16)).astype(np.float32)


def build(folder: Path, model: onnx.ModelProto | None = None, **options: Any) -> Path:
    path = folder / "network.so"
    compile_model(model or network(), read_options({"jobs": 1, **options}), path)
    return path


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("artifact"))


@pytest.fixture(scope="module")
def avx2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("avx2"), cpu="x86-64-v3")


def test_results_agree_with_onnx_runtime(artifact: Path, avx2: Path) -> None:
    runner = session(network())
    for path in (artifact, avx2):
        module = tcc.load(path)
        for batch in (1, 4, 9):
            feeds = {"x": image(batch)}
            assert_agree(module.run(feeds), expected(runner, feeds))


# ---- determinism ---------------------------------------------------------------------------------


def test_two_compiles_in_two_folders_give_equal_bytes(artifact: Path, tmp_path: Path) -> None:
    again = build(tmp_path, jobs=2)
    assert again.read_bytes() == artifact.read_bytes()
    header = "network.h"
    assert (tmp_path / header).read_bytes() == (artifact.parent / header).read_bytes()


def test_threads_change_no_bit(artifact: Path) -> None:
    x = image(16)
    one, two = (tcc.load(artifact, threads=n).run({"x": x}) for n in (1, 2))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    assert tcc.load(artifact, threads=2).statistics().threads == 2


def test_nothing_is_read_before_it_is_written(artifact: Path) -> None:
    poisoned = runtime.load(artifact, 2, poison=True)
    plain = tcc.load(artifact)
    for batch in (7, 2, 7):
        results, reference = poisoned.run({"x": image(batch)}), plain.run({"x": image(batch)})
        assert all(results[name].tobytes() == reference[name].tobytes() for name in reference)


def test_two_artifacts_in_one_process(artifact: Path, tmp_path: Path) -> None:
    other = build(tmp_path, network(seed=1))
    models = {artifact: network(), other: network(seed=1)}
    modules = {path: tcc.load(path) for path in models}
    feeds = {"x": image()}
    for _ in range(2):
        for path, model in models.items():
            assert_agree(modules[path].run(feeds), expected(session(model), feeds))


def test_python_threads_share_a_module(artifact: Path) -> None:
    module = tcc.load(artifact, threads=2)
    inputs = [image(1 + n % 5) for n in range(24)]
    reference = [module.run({"x": x}) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: module.run({"x": x}), inputs))
    for a, b in zip(results, reference, strict=True):
        assert all(a[name].tobytes() == b[name].tobytes() for name in b)


# ---- facts about kernels ----------------------------------------------------------------------


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.execute(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def test_inspect_shows_the_cost_and_the_time_of_each_kernel(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--measure", "--runs", "3", "--input", "x=4x3x16x16", "--json")
    rows = json.loads(inspected(capsys, str(artifact), *small))
    measured = [row["measured"] for row in rows]
    assert measured == sorted(measured, reverse=True)
    assert all(0 < t < 1 for t in measured)
    assert all(row["flops"] >= 0 < row["bytes"] for row in rows)
    predicted = json.loads(inspected(capsys, str(artifact), "--kernels", "--json"))
    kernels = [row for row in predicted if row["flops"] is not None]
    assert len(kernels) == read_manifest(artifact)["variants"][0]["kernel_count"]
    assert all(row["predicted"] > 0 and row["bytes"] > 0 for row in kernels)
    table = inspected(capsys, str(artifact), "--kernels").splitlines()
    assert table[0].startswith("kernel")
    assert table[-3].startswith("all")
    assert table[-2].startswith("contractions: ")
    assert table[-1].startswith("symbolic sizes: ")


def test_kept_ir_is_shown_and_becomes_assembly(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact_with_ir = build(tmp_path, keep_ir=True)
    ir = inspected(capsys, str(artifact_with_ir), "--form", "llvm", "--kernel", "0")
    assert "define void @tcc_kernel_0(" in ir
    assert "tcc_kernel_0:" in inspected(
        capsys, str(artifact_with_ir), "--form", "asm", "--kernel", "tcc_kernel_0"
    )
    assert cli.execute(["inspect", str(artifact_with_ir), "--form", "asm", "--kernel", "99"]) == 2
    assert "no kernel '99'" in capsys.readouterr().err
    # The section lies beside the code section.
    assert read_listings(artifact) == {}
    x = {"x": image(2)}
    results, reference = tcc.load(artifact_with_ir).run(x), tcc.load(artifact).run(x)
    assert all(results[name].tobytes() == reference[name].tobytes() for name in reference)


def test_a_machine_file_is_an_input_of_the_compile(avx2: Path, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    machine = replace(shipped_machine("x86-64-v3"), name="mine", cores=1)
    file.write_text(machine_text(machine))
    (variant,) = read_manifest(build(tmp_path, cpu="x86-64-v3", machine=file))["variants"]
    mine = variant["machine"]
    assert (mine["name"], mine["cores"]) == ("mine", 1)
    assert mine["sha256"] == machine_digest(machine)
    (variant,) = read_manifest(avx2)["variants"]
    shipped = variant["machine"]
    assert shipped["name"] == "x86-64-v3"
    assert shipped["sha256"] != mine["sha256"]
    with pytest.raises(UserError, match="other vectors"):
        build(tmp_path, cpu="x86-64-v4", machine=file)


# ---- refusals ------------------------------------------------------------------------------------


def edited(artifact: Path, target: Path, old: bytes, new: bytes) -> Path:
    """Returns a copy of the artifact in which `old` is replaced by `new` of the same length."""
    data = artifact.read_bytes()
    assert len(old) == len(new)
    assert old in data
    target.write_bytes(data.replace(old, new))
    return target


def test_another_abi_is_refused(artifact: Path, tmp_path: Path) -> None:
    path = edited(artifact, tmp_path / "old.so", b'"abi": 3', b'"abi": 7')
    with pytest.raises(UserError, match=r"another version of tcc[\s\S]*compile the model again"):
        tcc.load(path)


def test_a_missing_cpu_feature_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact asks for a CPUID bit that no processor has."""
    row = isa_feature
    impossible = type(row("avx2"))("made-up-feature", 7, 0, 3, 31, 1 << 62)
    monkeypatch.setattr(
        "tcc.backends.artifact.variant.isa_feature",
        lambda name: impossible if name == "avx2" else row(name),
    )
    path = build(tmp_path, cpu="x86-64-v3")
    with pytest.raises(UserError, match="made-up-feature"):
        tcc.load(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "inputs are missing: x"),
        ({"x": image(), "u": image()}, "no input 'u'"),
        ({"x": image().astype(np.float64)}, "expected element type f32, got f64"),
        ({"x": image()[0]}, r"expected shape \[n,3,16,16\], got \[3,16,16\]"),
        ({"x": image()[:, :2]}, r"expected shape \[n,3,16,16\], got \[4,2,16,16\]"),
        ({"x": "text"}, "cannot be used as an array"),
    ],
    ids=["missing", "name", "dtype", "rank", "shape", "text"],
)
def test_wrong_inputs_are_the_users_error(
    artifact: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        tcc.load(artifact).run(given)


# ---- the Python interface ------------------------------------------------------------------------


def test_compile_and_call(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(), path)
    module = tcc.compile(path, jobs=1, threads=1, inputs={"x": (2, 3, 16, 16)})
    assert [(p.name, p.dtype, p.shape) for p in module.inputs] == [("x", "f32", (2, 3, 16, 16))]
    assert [p.name for p in module.outputs] == ["y", "z"]
    x = image(2)
    y, z = module(x)
    again, _ = module(x=x)
    assert y.tobytes() == again.tobytes()
    assert isinstance(z, np.ndarray)
    assert module.manifest["variants"][module.variant]["arena_bytes"] > 0
    module.save(tmp_path / "second.so")
    del module
    assert tcc.load(tmp_path / "second.so")(x)[0].tobytes() == y.tobytes()


def test_torch_tensors_give_torch_tensors(artifact: Path) -> None:
    torch = pytest.importorskip("torch")
    module = tcc.load(artifact)
    x = image()
    y, _ = module(torch.from_numpy(x))
    assert isinstance(y, torch.Tensor)
    assert np.array_equal(y.numpy(), module(x)[0])


class Exchanged:
    """An array that offers DLPack only."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_dlpack_arrays_are_taken(artifact: Path) -> None:
    module = tcc.load(artifact)
    assert np.array_equal(module(Exchanged(image()))[0], module(image())[0])


def test_tvm_ffi_runs_the_same_file(artifact: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    torch = pytest.importorskip("torch")
    loaded = tvm_ffi.load_module(str(artifact))
    reference = tcc.load(artifact)(image())
    for convert in (np.asarray, torch.from_numpy):
        results = loaded["main"](convert(image()))
        assert all(
            np.array_equal(np.from_dlpack(a), b) for a, b in zip(results, reference, strict=True)
        )
    y, z = torch.zeros(4, 50), torch.zeros(4, 24)
    places = y.data_ptr(), z.data_ptr()
    loaded["run_into"](torch.from_numpy(image()), y, z)
    assert (y.data_ptr(), z.data_ptr()) == places
    assert np.array_equal(y.numpy(), reference[0])


# ---- without Python ------------------------------------------------------------------------------


def client(folder: Path, *flags: str) -> Path:
    include = f"-I{runtime_folder() / 'include'}"
    command = ("cc", "-std=c11", "-Wall", "-Werror", *flags, include, str(CLIENT), "-ldl")
    subprocess.run((*command, "-o", "client"), cwd=folder, check=True)
    return folder / "client"


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def assert_prints_sums(text: str, path: Path) -> None:
    """Checks that the client prints the sum of each output when all inputs are one."""
    printed = [float(line) for line in text.splitlines() if not line.startswith("output")]
    outputs = [out.astype(np.float64) for out in tcc.load(path)(np.ones((4, 3, 16, 16), "f4"))]
    for number, out in zip(printed, outputs, strict=True):
        np.testing.assert_allclose(number, out.sum(), rtol=1e-4, atol=1e-5 * np.abs(out).sum())


def test_a_c_program_under_address_sanitizer(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc -fsanitize=address")
    path = build(tmp_path)
    result = run(client(tmp_path, "-fsanitize=address"), path, ASAN_OPTIONS="detect_leaks=1")
    assert (result.returncode, result.stderr) == (0, "")
    assert_prints_sums(result.stdout, artifact)


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_a_c_program_under_valgrind(avx2: Path, tmp_path: Path) -> None:
    checked = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full")
    result = run(*checked, client(tmp_path), avx2, TCC_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    assert_prints_sums(result.stdout, avx2)


def test_the_manifest_names_target_and_kernels(avx2: Path) -> None:
    manifest = read_manifest(avx2)
    (variant,) = manifest["variants"]
    assert variant["cpu"] == "x86-64-v3"
    assert "avx512f" not in variant["features"]
    assert len(variant["kernels"]) == variant["kernel_count"]
    json.dumps(manifest)
