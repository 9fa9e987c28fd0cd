"""Make and CMake build C++ programs from packages, which are then installed, moved, and run.

The results agree with NumPy's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tcc.backends.artifact.link import c_name
from tcc.cli import execute

from tests.processes import finished

EXAMPLE = Path(__file__).resolve().parents[2] / "models" / "examples" / "cpp"
STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
WEIGHT = np.sin(np.arange(12, dtype=np.float32)).reshape(4, 3)
ROWS = 2 * np.cos(np.arange(20, dtype=np.float32)).reshape(5, 4)


def write_model(path: Path, factor: float = 1) -> None:
    """Writes a model y = softmax(x @ (factor * WEIGHT)) for x with any number of rows."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=-1),
    ]
    ports = value("x", 1, ["rows", 4]), value("y", 1, ["rows", 3])
    weight = numpy_helper.from_array(np.float32(factor) * WEIGHT, "w")
    graph = helper.make_graph(nodes, "classifier", ports[:1], ports[1:], [weight])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def softmax(x: np.ndarray, factor: float = 1) -> np.ndarray:
    """Returns the outputs of the model in float64."""
    powers = np.exp(x.astype(np.float64) @ (factor * WEIGHT.astype(np.float64)))
    return powers / powers.sum(axis=1, keepdims=True)


def compile_package(model: Path, folder: Path, emit: str = "shared") -> None:
    assert execute(["compile", str(model), "--package", str(folder), "--emit", emit]) == 0


def succeed(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def moved_package(folder: Path, emit: str) -> Path:
    """Writes a package, and moves it to another folder."""
    write_model(folder / "classifier.onnx")
    compile_package(folder / "classifier.onnx", folder / "first" / "package", emit)
    return (folder / "first").rename(folder / "a second") / "package"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moved_package(tmp_path_factory.mktemp("package"), "shared")


@pytest.fixture(scope="module")
def static_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moved_package(tmp_path_factory.mktemp("package"), "static")


def check(app: Path, folder: Path) -> None:
    """Moves the installed program, runs it, and compares its scores with NumPy's."""
    app_moved = app.rename(folder / "elsewhere")
    (folder / "rows.bin").write_bytes(ROWS.tobytes())
    result = finished(app_moved / "bin" / "classify", folder / "rows.bin")
    assert result.returncode == 0, result.stderr
    lines = [line.split(": ") for line in result.stdout.splitlines()]
    expected = softmax(ROWS)
    assert [int(line[0]) for line in lines] == expected.argmax(axis=1).tolist()
    scores = [[float(word) for word in line[1].split()] for line in lines]
    assert np.allclose(scores, expected, rtol=1e-5, atol=1e-6)
    missing = finished(app_moved / "bin" / "classify", folder / "absent.bin")
    assert missing.returncode == 1
    assert "absent.bin cannot be read" in missing.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_make_builds_a_program_that_may_move(package: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "source")
    plain = package.parent.with_name("plain")  # make splits words at spaces
    plain.symlink_to(package)
    flags = f"CXXFLAGS=-O1 {' '.join(STRICT)}"
    words = ("make", "install", f"PACKAGE={plain}", f"PREFIX={tmp_path / 'app'}", flags)
    succeed(*words, cwd=tmp_path / "source")
    check(tmp_path / "app", tmp_path)


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_make_links_a_static_library(static_package: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "app" / "bin")
    plain = tmp_path / "plain"  # make splits words at spaces
    plain.symlink_to(static_package)
    flags = f"CXXFLAGS=-O1 {' '.join(STRICT)}"
    succeed("make", "classify", f"PACKAGE={plain}", flags, cwd=tmp_path / "app" / "bin")
    plain.unlink()
    check(tmp_path / "app", tmp_path)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize("emit", ["shared", "static"])
def test_cmake_builds_a_program_that_may_move(
    package: Path, static_package: Path, tmp_path: Path, emit: str
) -> None:
    package = {"shared": package, "static": static_package}[emit]
    build = tmp_path / "build"
    flags = f"-DCMAKE_CXX_FLAGS={' '.join(STRICT[1:])}"
    succeed("cmake", "-S", EXAMPLE, "-B", build, f"-DCMAKE_PREFIX_PATH={package}", flags)
    succeed("cmake", "--build", build)
    succeed("cmake", "--install", build, "--prefix", tmp_path / "app")
    check(tmp_path / "app", tmp_path)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_names_the_missing_file_of_a_package(package: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    (copy / "lib" / "classifier.so").unlink()
    words = ["cmake", "-S", EXAMPLE, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={copy}"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "classifier.so is missing" in " ".join(result.stderr.split())


TWO = """
#include <iostream>
#include "{0}/{0}.h"
#include "{1}/{1}.h"
#include "tcc.hpp"

int main() {{
    std::vector<float> values{{{values}}};
    for (const tcc_api *api : {{{0}_api(), {1}_api()}}) {{
        tcc::Model model(api);
        auto results = model.run({{model.input<float>("x")(values, {{5, 4}})}});
        for (float score : model.output<float>("y")(results)) std::cout << score << ' ';
        std::cout << std::endl;
    }}
    try {{
        tcc::Model model({0}_api());
        model.run({{tcc::tensor<float>(values, {{4, 5}})}});
    }} catch (const tcc::Error &error) {{
        std::cout << error.what() << std::endl;
    }}
}}
"""


def test_two_models_of_one_folder_work_in_one_program(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    names = []
    for stem, factor in (("β", 1), ("2-x", 2)):
        write_model(tmp_path / f"{stem}.onnx", factor)
        compile_package(tmp_path / f"{stem}.onnx", folder)
        names.append(c_name(stem))
    assert all(name.isascii() and name.isidentifier() for name in names)
    source = tmp_path / "two.cpp"
    values = ", ".join(f"{float(value)!r}f" for value in ROWS.flat)
    source.write_text(TWO.format(*names, values=values))
    libraries = [f"-l:{name}.so" for name in names]
    flags = (f"-I{folder / 'include'}", f"-L{folder / 'lib'}", f"-Wl,-rpath,{folder / 'lib'}")
    watched = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    words = ("g++", *STRICT, *watched, *flags, source, *libraries, "-o", tmp_path / "two")
    succeed(*words)
    result = finished(tmp_path / "two")
    assert result.returncode == 0, result.stderr[-3000:]
    *lines, message = result.stdout.splitlines()
    for line, factor in zip(lines, (1, 2), strict=True):
        scores = np.array(line.split(), np.float64).reshape(5, 3)
        assert np.allclose(scores, softmax(ROWS, factor), rtol=1e-5, atol=1e-6)
    assert "'x'" in message
