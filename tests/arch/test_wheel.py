"""A wheel built from the sdist works in an environment that has never seen the source tree."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("compiler", "passes", "backends", "runtime")
# One worker builds the wheel once, also where tests are spread over several.
pytestmark = pytest.mark.xdist_group("wheel")
PAGES = ("pyproject.toml", "README.md", "LICENSE")


def check_output(*command: str | Path, cwd: Path) -> str:
    """Runs a command that sees nothing of this tree; its output is shown when it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from an sdist that was built from a copy of the tracked sources."""
    tree = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__", "lib", "*.o")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in PAGES:
        shutil.copy(ROOT / name, tree / name)
    check_output(sys.executable, "-m", "build", "--no-isolation", ".", cwd=tree)
    (found,) = (tree / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with the libraries of this one but nothing else of it.

    Path files of this environment (an editable install among them) have no effect there.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    check_output(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        "--quiet", wheel, cwd=folder,
    )  # fmt: skip
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    link = folder / "lib" / version / "site-packages" / "libraries.pth"
    link.write_text("\n".join(sorted(libraries)))
    return python


def test_the_wheel_holds_code_sources_and_the_built_runtime(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {
        f"tcc/{path.relative_to(ROOT / name)}"
        if name == "compiler"
        else f"tcc/{path.relative_to(ROOT)}"
        for name in SOURCES
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".c", ".h")
    }
    assert modules - names == set()
    assert any(name.startswith("tcc/runtime/lib/") for name in names)
    assert "-py3-none-linux_" in wheel.name


def test_the_installed_command_works(python: Path, tmp_path: Path) -> None:
    where = check_output(python, "-c", "import tcc; print(tcc.__file__)", cwd=tmp_path)
    assert where.startswith(str(python.parents[1]))
    version = check_output(python, "-m", "tcc", "--version", cwd=tmp_path)
    assert version.startswith("tcc, version ")
    facts = check_output(python.parent / "tcc", "doctor", cwd=tmp_path)
    assert "processor" in facts


def test_the_installed_package_compiles_and_runs_a_model(python: Path, tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "relu", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (tmp_path / "relu.onnx").write_bytes(model.SerializeToString())
    tcc = python.parent / "tcc"
    assert "1 ops in 1 kernels" in check_output(tcc, "compile", "relu.onnx", cwd=tmp_path)
    out = check_output(tcc, "run", "relu.so", "--input", "x=3xf32=-2", cwd=tmp_path)
    assert out == "y: float32 3, least 0.0, largest 0.0, mean 0\n"
    assert (tmp_path / "relu.h").is_file()
