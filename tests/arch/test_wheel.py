"""Every way to install works in an environment that has never seen the source tree."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
import tcc
from onnx import TensorProto, helper

from tests.lib.elf_symbols import dynamic, newest_glibc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("compiler", "passes", "backends", "runtime")
# One worker builds the wheel once, even if tests are spread over several workers.
pytestmark = pytest.mark.xdist_group("wheel")
PAGES = ("pyproject.toml", "README.md", "LICENSE", "scripts/devtree")
PIP = (sys.executable, "-m", "pip")
# The libraries of glibc that a manylinux wheel may need.
OF_GLIBC = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6"} | {
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}  # fmt: skip
NO_COMPILER = {"CC": "no-such-compiler"}
# One isolated build, the wheel's, shows that `requires` is complete; other builds skip isolation
# and need no registry.
BESIDE = "--no-build-isolation"
# pip compiles no bytecode, because tests import few of the installed modules.
QUICK = {"PIP_NO_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(
    *command: str | Path, cwd: Path, settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command that cannot see this source tree."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= QUICK
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment | (settings or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def check_output(*command: str | Path, cwd: Path, settings: dict[str, str] | None = None) -> str:
    """Returns the output of a command that cannot see this source tree; shows it if the command
    fails."""
    process = run(*command, cwd=cwd, settings=settings)
    assert process.returncode == 0, f"{command}:\n{process.stdout}"
    return process.stdout


def copied_tree(folder: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "lib", "*.o")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in PAGES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns pip's complaint if the registry does not answer, so that isolated builds are
    impossible; else ""."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    folder = tmp_path_factory.mktemp("requires")
    process = run(*PIP, "download", "--quiet", "--no-deps", "--dest", folder, *requires, cwd=folder)
    if process.returncode == 0:
        return ""
    return f"the package registry cannot be reached: {process.stdout.strip().splitlines()[-1]}"


@pytest.fixture(scope="module")
def isolated(unreachable: str) -> None:
    """Skips the test if isolated builds are impossible."""
    if unreachable:
        pytest.skip(unreachable)


@pytest.fixture(scope="module")
def wheel(unreachable: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a wheel from an sdist that was built from a copy of the sources, and returns its path.

    If the registry answers, the build sees only the packages of pyproject.toml's `build-system`.
    """
    tree = copied_tree(tmp_path_factory.mktemp("tree"))
    flags = ("--no-isolation",) if unreachable else ()
    stale = tree / "build" / "lib" / "tcc" / "left_by_an_earlier_build.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    check_output(sys.executable, "-m", "build", *flags, ".", cwd=tree)
    (wheels,) = (tree / "dist").glob("*.whl")
    return wheels


def clean_environment(folder: Path) -> Path:
    """Returns the Python of a new environment that sees the libraries of this environment only.

    Path files of this environment, for example of an editable install, have no effect there.
    """
    venv.create(folder, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    link = folder / "lib" / version / "site-packages" / "libraries.pth"
    link.write_text("\n".join(sorted(libraries)))
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path, settings: dict[str, str] | None = None) -> str:
    command = (*PIP, "--python", python, "install", "--no-deps", "--verbose", *what)
    return check_output(*command, cwd=python.parent, settings=settings)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment in which the wheel is installed."""
    python = clean_environment(tmp_path_factory.mktemp("clean"))
    install(python, "--no-index", wheel)
    return python


def test_the_wheel_is_built_in_isolation(isolated: None, wheel: Path) -> None:
    assert wheel.is_file()


def test_a_repository_installs_without_a_c_compiler(tmp_path: Path) -> None:
    tree = copied_tree(tmp_path / "tree")
    git = ("git", "-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "sources")):
        check_output(*git, *command, cwd=tree)
    python = clean_environment(tmp_path / "clean")
    said = install(python, BESIDE, f"git+file://{tree}", settings=NO_COMPILER)
    assert "the wheel holds no compiled runtime: no C compiler was found" in said
    assert check_output(python, "-m", "tcc", "--version", cwd=tmp_path).startswith("tcc, version ")


def test_a_clone_called_tcc_does_not_hide_an_editable_install(tmp_path: Path) -> None:
    clone = copied_tree(tmp_path / "tcc")
    python = clean_environment(tmp_path / "clean")
    install(python, BESIDE, "--editable", clone, settings=NO_COMPILER)
    assert_found_beside(clone, python)


def test_a_clone_called_tcc_does_not_hide_the_wheel(python: Path, tmp_path: Path) -> None:
    assert_found_beside(copied_tree(tmp_path / "tcc"), python)


def assert_found_beside(clone: Path, python: Path) -> None:
    """Checks that a script, a command and a module beside the folder `clone` find the installed
    package."""
    (clone.parent / "script.py").write_text("import tcc\nprint(tcc.compile.__module__)\n")
    commands = {
        "tcc.driver\n": (python, "script.py"),
        f"tcc, version {tcc.__version__}\n": (python, "-m", "tcc", "--version"),
    }
    for expected, command in commands.items():
        assert check_output(*command, cwd=clone.parent) == expected


def test_the_wheel_holds_code_sources_machines_and_the_built_runtime(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {
        f"tcc/{path.relative_to(ROOT / name)}"
        if name == "compiler"
        else f"tcc/{path.relative_to(ROOT)}"
        for name in SOURCES
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".hpp", ".json", ".cmake", ".pc", ".rs", ".toml")
    }
    assert "tcc/schedule/cpu/machines/znver5.json" in modules
    assert modules - names == set()
    assert not any("left_by_an_earlier_build" in name for name in names)
    assert any(name.startswith("tcc/runtime/lib/") for name in names)
    assert "tcc/runtime/lib/libtcc_comm.so" in names
    assert "tcc/runtime/lib/libtcc_plan.so" in names


def test_the_wheel_installs_and_its_libraries_load_on_systems_of_2014(
    wheel: Path, tmp_path: Path
) -> None:
    """A manylinux tag (PEP 600) names the oldest glibc with which the files of the wheel load."""
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl")
    with ZipFile(wheel) as archive:
        tags = archive.read(next(n for n in archive.namelist() if n.endswith("/WHEEL"))).decode()
        assert f"\nTag: py3-none-manylinux_2_17_{platform.machine()}\n" in tags
        for name in ("libtcc_comm.so", "libtcc_plan.so"):
            library = Path(archive.extract(f"tcc/runtime/lib/{name}", tmp_path))
            assert newest_glibc(library) <= (2, 17), name
            assert set(dynamic(library, 1)) <= OF_GLIBC, name


def test_the_installed_command_works(python: Path, tmp_path: Path) -> None:
    where = check_output(python, "-c", "import tcc; print(tcc.__file__)", cwd=tmp_path)
    assert where.startswith(str(python.parents[1]))
    version = check_output(python, "-m", "tcc", "--version", cwd=tmp_path)
    assert version.startswith("tcc, version ")
    (tmp_path / "lives.csv").write_text("id,lower,upper,size\n0,0,2,3\n1,1,3,4\n")
    plan = check_output(python, "-m", "tcc.runtime.arena", "lives.csv", cwd=tmp_path)
    assert plan == "peak 7 bound 7 verdict valid\n"
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
    assert "1 op in 1 kernel" in check_output(tcc, "compile", "relu.onnx", cwd=tmp_path)
    out = check_output(tcc, "run", "relu.so", "--input", "x=3xf32=-2", cwd=tmp_path)
    assert out == "y: float32 3, least 0, largest 0, mean 0\n"
    assert (tmp_path / "relu.h").is_file()
