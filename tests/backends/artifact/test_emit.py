"""Tests of programs that link object files and archives of models, several in one program.

The models are y = relu(x) + w with different weights; NumPy computes the expected output.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.artifact import read_manifest
from tcc.backends.artifact.emit import LIBRARIES
from tcc.driver import compile as compile_module
from tcc.driver import compile_model
from tcc.errors import ToolError, UserError
from tcc.options import read_options

from tests.processes import finished

MAIN = """
#include <stdio.h>
#include "first.h"
#include "second.h"

static int run(const tcc_api *api) {
    tcc_model *model;
    float x[3] = {-1, 0.5f, 2}, y[3];
    int64_t shape[1] = {3};
    tcc_tensor in = {.data = x, .device = {TCC_CPU, 0}, .ndim = 1, .dtype = TCC_F32};
    in.shape = shape;
    tcc_tensor out = in;
    out.data = y;
    if (api->model_get(&model) || api->call(model, &in, 1, &out, 1, NULL, NULL)) {
        puts(api->last_error());
        return 1;
    }
    api->model_release(model);
    printf("%g %g %g\\n", y[0], y[1], y[2]);
    return 0;
}

int main(void) { return run(first_api()) | run(second_api()); }
"""
EXPECTED = [
    np.maximum([-1, 0.5, 2], 0) + factor * np.arange(1, 4, dtype=np.float64) for factor in (1, 10)
]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror")


def write_models(
    folder: Path, kernels: bytes, emit: str, room: int = 0, side_file: bool = False
) -> list[Path]:
    """Writes two models and main.c; the weights have `room` additional bytes."""
    program, weights = programs.mlp()
    suffix = {"object": ".o", "static": ".a"}[emit]
    files = []
    for name, factor in (("first", 1), ("second", 10)):
        data = (factor * np.frombuffer(weights, np.float32)).tobytes() + bytes([factor]) * room
        files.append(folder / f"{name}{suffix}")
        programs.link(
            program, kernels, files[-1], name=name, weights=[data], emit=emit, side_file=side_file
        )
    (folder / "main.c").write_text(MAIN)
    return files


def build(folder: Path, *words: str | Path) -> Path:
    """Builds a program in the subfolder `bin`."""
    program = folder / "bin" / "main"
    program.parent.mkdir(exist_ok=True)
    command = ("gcc", *STRICT, *words, *LIBRARIES.split(), "-o", program)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return program


def check(program: Path, **variables: str) -> None:
    result = finished(program, env=variables)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not result.stderr
    lines = [np.array(line.split(), np.float64) for line in result.stdout.splitlines()]
    np.testing.assert_array_equal(lines, EXPECTED)


@pytest.mark.parametrize("emit", ["object", "static"])
def test_the_only_global_definition_is_the_models_function(
    kernels: bytes, tmp_path: Path, emit: str
) -> None:
    for file in write_models(tmp_path, kernels, emit):
        command = ("nm", "-g", "--defined-only", "-f", "posix", file)
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = [line.split() for line in names.splitlines() if not line.endswith(":")]
        assert [line[:2] for line in lines] == [[f"{file.stem}_api", "T"]]


WAYS = {
    "default": (),
    "no-pie": ("-no-pie", "-fno-pie"),
    "static": ("-static",),
    "static-pie": ("-static-pie", "-fPIE"),
    "sections": ("-ffunction-sections", "-Wl,--gc-sections", "-Wl,-z,relro,-z,now"),
    "gold": ("-fuse-ld=gold",),
    "sanitizers": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("emit", ["object", "static"])
def test_two_models_work_in_one_program(
    kernels: bytes, tmp_path: Path, emit: str, way: str
) -> None:
    files = write_models(tmp_path, kernels, emit)
    program = build(tmp_path, *WAYS[way], "main.c", *files)
    for file in files:
        file.unlink()
    check(program)
    command = ("readelf", "-lW", program)
    segments = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (stack,) = [line.split() for line in segments.splitlines() if "GNU_STACK" in line]
    assert stack[6] == "RW", "the stack is executable"


@pytest.mark.parametrize("choice", ["", "map", "share", "copy"])
def test_large_weights_of_the_program_can_be_mapped_shared_and_copied(
    kernels: bytes, tmp_path: Path, choice: str
) -> None:
    files = write_models(tmp_path, kernels, "static", room=9 << 20)
    check(build(tmp_path, "main.c", *files), TCC_WEIGHTS=choice, TCC_VERIFY="1")


def test_damage_to_the_weights_of_a_program_is_seen_on_request(
    kernels: bytes, tmp_path: Path
) -> None:
    program = build(tmp_path, "main.c", *write_models(tmp_path, kernels, "object"))
    data = bytearray(program.read_bytes())
    place = data.index((10 * np.arange(1, 65, dtype=np.float32)).tobytes())
    data[place + 200] ^= 1
    program.write_bytes(data)
    result = finished(program, env={"TCC_VERIFY": "1"})
    assert result.returncode == 1
    assert f"the weights of '{program}' are damaged" in result.stdout
    check(program)


def test_a_program_finds_side_files_in_its_own_folder(kernels: bytes, tmp_path: Path) -> None:
    files = write_models(tmp_path, kernels, "static", side_file=True)
    program = build(tmp_path, "main.c", *files)
    result = finished(program)
    assert result.returncode == 1
    assert f"'{program.parent}/first.a.weights' must be the side file" in result.stdout
    for file in files:
        side = file.with_name(f"{file.name}.weights")
        side.rename(program.parent / side.name)
    package = program.parent.rename(tmp_path / "moved here")
    check(package / "main")


HOST = """
#include <dlfcn.h>
#include <stdio.h>
#include "first.h"

int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) return puts(dlerror());
    const tcc_api *(*get)(void) = (const tcc_api *(*)(void))dlsym(library, "user_api");
    const tcc_api *api = get();
    tcc_model *model;
    if (api->model_get(&model)) return puts(api->last_error());
    api->model_release(model);
    dlclose(library);
    printf("%d\\n", dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    return 0;
}
"""


def test_a_library_that_links_a_model_stays_loaded(kernels: bytes, tmp_path: Path) -> None:
    """A library stays loaded after dlclose, because idle workers wait in its code."""
    files = write_models(tmp_path, kernels, "object")
    user = '#include "first.h"\nconst tcc_api *user_api(void) { return first_api(); }\n'
    (tmp_path / "user.c").write_text(user)
    words = ("gcc", "-shared", "-fPIC", "user.c", files[0], *LIBRARIES.split())
    command = (*words, "-o", "libuser.so")
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "host.c").write_text(HOST)
    result = finished(build(tmp_path, "host.c"), tmp_path / "libuser.so")
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stdout + result.stderr


@pytest.mark.parametrize("emit", ["object", "static"])
def test_equal_inputs_give_equal_bytes(kernels: bytes, tmp_path: Path, emit: str) -> None:
    files = []
    for name in ("one", "another folder"):
        (tmp_path / name).mkdir()
        files.append(write_models(tmp_path / name, kernels, emit))
    for one, another in zip(*files, strict=True):
        assert one.read_bytes() == another.read_bytes()


def test_the_side_file_may_have_any_name(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    out = tmp_path / 'a "β"\\n.a'
    for name in ("first", "second"):
        options = {"weights": [weights], "emit": "static", "side_file": True}
        programs.link(program, kernels, tmp_path / f"{name}.a", name=name, **options)
    programs.link(program, kernels, out, name="first", **options)
    (tmp_path / "first.h").write_bytes(out.with_suffix(".h").read_bytes())
    (tmp_path / "main.c").write_text(MAIN)
    main = build(tmp_path, "main.c", out, "second.a")
    for name in (f"{out.name}.weights", "second.a.weights"):
        (tmp_path / name).rename(main.parent / name)
    assert finished(main).returncode == 0


def test_a_missing_tool_is_named(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "objcopy" in name else which(name))
    with pytest.raises(ToolError, match="objcopy was not found"):
        write_models(tmp_path, kernels, "object")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("emit", "why"), [("object", "object file"), ("static", "static library")])
def test_a_static_object_is_refused_as_an_artifact(
    kernels: bytes, tmp_path: Path, emit: str, why: str
) -> None:
    with pytest.raises(UserError, match="not a tcc artifact") as caught:
        read_manifest(write_models(tmp_path, kernels, emit)[0])
    assert why in str(caught.value.why)


def test_a_c_file_is_not_emitted_as_an_object(tmp_path: Path) -> None:
    options = read_options({"target": "c", "emit": "object"})
    with pytest.raises(UserError, match="a C file is no library"):
        compile_model(tmp_path / "absent.onnx", options, tmp_path / "model.o")
    with pytest.raises(UserError, match="the output is no module"):
        compile_module("absent.onnx", emit="static")


@pytest.mark.parametrize(("limit", "place"), [(256, "artifact"), (255, "side file")])
def test_weights_above_the_limit_are_in_a_side_file(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, place: str
) -> None:
    program, weights = programs.mlp()
    monkeypatch.setattr("tcc.backends.artifact.link._MOST_LINKED", limit)
    options = {"name": "mini", "weights": [weights], "emit": "object"}
    manifest = programs.link(program, kernels, tmp_path / "mini.o", **options)
    assert manifest["weights"]["place"] == place
    assert (tmp_path / "mini.o.weights").exists() == (place == "side file")
