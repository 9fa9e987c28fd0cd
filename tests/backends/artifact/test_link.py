"""Tests of the linker step: reproducible files, correct manifests, clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.artifact import (
    find_weights,
    read_listings,
    read_manifest,
    verify_image,
    verify_weights,
)
from tcc.backends.artifact import toolchain
from tcc.backends.artifact.link import c_name, link_artifact
from tcc.backends.artifact.toolchain import find_toolchain, runtime_objects
from tcc.backends.artifact.variant import Variant
from tcc.errors import InternalError, ToolError, UserError
from tcc.runtime import load
from tcc.target import isa_feature


@pytest.fixture(scope="module")
def artifact(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, weights = programs.mlp()
    out = tmp_path_factory.mktemp("link") / "mini.so"
    programs.link(program, kernels, out, weights=[weights])
    return out


def test_equal_inputs_in_two_folders_give_equal_bytes(
    kernels: bytes, tmp_path: Path, artifact: Path
) -> None:
    program, weights = programs.mlp()
    out = tmp_path / "some" / "where else" / "mini.so"
    programs.link(program, kernels, out, weights=[weights[:100], memoryview(weights[100:])])
    assert out.read_bytes() == artifact.read_bytes()
    assert out.with_suffix(".h").read_text() == artifact.with_suffix(".h").read_text()
    assert sorted(p.name for p in out.parent.iterdir()) == ["mini.h", "mini.so"]


def test_the_manifest_is_read_without_loading_the_code(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert manifest["name"] == "mini"
    assert manifest["tcc"] == "test"
    assert manifest["inputs"] == [
        {"name": "x", "dtype": "f32", "shape": [None], "text": "[n]", "state": -1}
    ]
    assert manifest["weights"]["bytes"] == 256
    assert manifest == load(artifact).manifest


def test_only_the_interface_is_exported(artifact: Path) -> None:
    command = ("nm", "-D", "--defined-only", str(artifact))
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    names = {line.split()[-1].split("@")[0] for line in lines if line}
    assert names == {
        "mini_api", "tcc_artifact_api", "tcc_python_functions",
        "__tvm_ffi_main", "__tvm_ffi_run_into", "__tvm_ffi__metadata_main", "__tvm_ffi__doc_main",
    }  # fmt: skip


def test_only_the_c_library_is_needed(artifact: Path) -> None:
    command = ("readelf", "-d", str(artifact))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in text.split("\n") if "NEEDED" in line}
    # Thread-local storage needs the loader.
    loader = {name for name in needed if name.startswith("ld-linux")}
    assert needed - loader <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}


def test_weights_are_found_checked_and_page_aligned(artifact: Path, tmp_path: Path) -> None:
    weights = find_weights(artifact, read_manifest(artifact))
    assert weights is not None
    assert weights.offset % 65536 == 0
    verify_weights(weights)
    data = bytearray(artifact.read_bytes())
    data[weights.offset + 10] ^= 1
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(data)
    section = find_weights(damaged, read_manifest(damaged))
    assert section is not None
    with pytest.raises(UserError, match="damaged"):
        verify_weights(section)


def test_large_weights_start_at_a_huge_page(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    out = tmp_path / "large.so"
    big = np.zeros(9 << 20, np.uint8)
    programs.link(program, kernels, out, weights=[weights, big])
    section = find_weights(out, read_manifest(out))
    assert section is not None
    assert section.offset % (2 << 20) == 0
    result = load(out)(np.zeros(64, np.float32))
    assert np.array_equal(result, np.arange(1, 65, dtype=np.float32))


def test_a_side_file_holds_the_weights_on_request(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    out = tmp_path / "side.so"
    programs.link(program, kernels, out, weights=[weights], side_file=True)
    module = load(out)
    assert module(np.zeros(3, np.float32)).tolist() == [1, 2, 3]
    copy = tmp_path / "copies" / "c.so"
    copy.parent.mkdir()
    module.save(copy)
    assert load(copy)(np.zeros(1, np.float32)).tolist() == [1]
    copy.with_name("c.so.weights").unlink()
    with pytest.raises(UserError, match="weights"):
        read_manifest(copy)


@pytest.mark.parametrize("keep", [0, 10, 100, 5000, -300, -64, -1])
def test_files_cut_short_are_refused(artifact: Path, tmp_path: Path, keep: int) -> None:
    short_file = tmp_path / "cut.so"
    short_file.write_bytes(artifact.read_bytes()[:keep])
    with pytest.raises(UserError):
        read_manifest(short_file)


def test_a_flipped_bit_of_the_code_is_found(artifact: Path, tmp_path: Path) -> None:
    verify_image(artifact)
    data = bytearray(artifact.read_bytes())
    data[2000] ^= 1
    (tmp_path / "damaged.so").write_bytes(data)
    with pytest.raises(UserError, match="its code does not have the hash in its seal"):
        verify_image(tmp_path / "damaged.so")


def test_flipped_bytes_of_the_elf_headers_never_crash_the_reader(
    artifact: Path, tmp_path: Path
) -> None:
    data = artifact.read_bytes()
    table = int.from_bytes(data[40:48], "little")
    flipped = tmp_path / "flipped.so"
    for at in (*range(64), *range(table, table + 64 * 40, 3)):
        damaged = bytearray(data)
        damaged[at % len(data)] ^= 0xFF
        flipped.write_bytes(damaged)
        try:
            assert read_manifest(flipped)["name"] == "mini"
        except UserError:
            continue


def test_other_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    for name in ("missing.so", "a\0b.so", "pipe.so"):
        with pytest.raises(UserError, match="cannot be read"):
            read_manifest(tmp_path / name)
    text = tmp_path / "text.so"
    text.write_text("x" * 1000)
    with pytest.raises(UserError, match="not a tcc artifact"):
        read_manifest(text)
    with pytest.raises(UserError, match="no section"):
        read_manifest(Path("/bin/sh"))


def test_another_abi_is_refused(artifact: Path, tmp_path: Path) -> None:
    data = artifact.read_bytes().replace(b'"abi": 3', b'"abi": 9')
    other = tmp_path / "other.so"
    other.write_bytes(data)
    with pytest.raises(UserError, match="ABI 9"):
        read_manifest(other)


@pytest.mark.parametrize("variants", ["1", "[]", "[3]", "{}"])
def test_a_manifest_without_variants_is_refused(
    variants: str, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'{{"abi": 3, "variants": {variants}, "weights": {{"bytes": 0}}}}'
    monkeypatch.setattr("tcc.runtime.artifact_file.ArtifactFile._section", lambda *_: text.encode())
    with pytest.raises(UserError, match="damaged") as caught:
        read_manifest(artifact)
    assert "does not describe its variants" in caught.value.why


def test_no_compiler_is_a_clear_error(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    program, weights = programs.mlp()
    with pytest.raises(ToolError, match="install gcc or clang"):
        programs.link(program, kernels, tmp_path / "x.so", weights=[weights])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_kernel_fails_and_leaves_nothing(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    with pytest.raises(ToolError, match="relu"):
        programs.link(program, b"", tmp_path / "x.so", weights=[weights])
    assert list(tmp_path.iterdir()) == []


def test_a_failing_compiler_shows_its_command(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc --no-such-option")
    program, weights = programs.mlp()
    with pytest.raises(ToolError, match="no-such-option"):
        programs.link(program, kernels, tmp_path / "x.so", weights=[weights])


def test_a_cache_that_cannot_be_written_costs_one_build_of_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler, commands = find_toolchain(), []

    def compiled(command: Sequence[str], folder: Path) -> str:
        commands.append(command)
        (folder / command[-1]).write_bytes(b"")
        return ""

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(toolchain, "run_tool", compiled)
    monkeypatch.setattr(toolchain, "_OWN", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first = runtime_objects(compiler)
    assert all(path.is_file() for path in first)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "compiling tcc's runtime, once for this compiler ..."
    assert said[1].startswith(f"it is not kept: {tmp_path / 'file' / 'tcc'}: ")
    assert runtime_objects(compiler) == first
    assert len(commands) == len(first)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ['"', "'cc"])
def test_a_compiler_whose_command_cannot_be_read(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(ToolError, match="cannot be read"):
        find_toolchain()
    monkeypatch.setenv("CC", "  ")
    assert find_toolchain().version


def test_a_cpu_feature_that_is_missing_is_named_before_anything_runs(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, weights = programs.mlp()
    out = tmp_path / "x.so"
    with pytest.raises(InternalError, match="no-such"):
        programs.link(program, kernels, out, weights=[weights], features=["no-such"])
    row = isa_feature("sse3")
    impossible = type(row)("made-up-feature", 7, 0, 3, 31, 1 << 62)
    monkeypatch.setattr("tcc.backends.artifact.variant.isa_feature", lambda name: impossible)
    programs.link(program, kernels, out, weights=[weights], features=["made-up-feature"])
    with pytest.raises(RuntimeError, match="made-up-feature"):
        load(out)


def test_cpu_features_of_this_machine_pass(kernels: bytes, tmp_path: Path) -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    features = [f for f in ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw") if f in flags]
    program, weights = programs.mlp()
    manifest = programs.link(
        program, kernels, tmp_path / "x.so", weights=[weights], features=features
    )
    assert manifest["variants"][0]["features"] == features
    load(tmp_path / "x.so")


def test_names_become_identifiers() -> None:
    assert c_name("resnet-50.v1") == "resnet_50_v1"
    assert c_name("3d net") == "model_3d_net"
    assert c_name("") == "model"
    assert c_name("Größe-é中") == "Grosse_eu4e2d"
    assert c_name("²") == "model_2"
    assert c_name("class") == "class"
    assert c_name("tcc") == "model_tcc"
    assert c_name("tcc_artifact") == c_name("model_tcc_artifact") == "model_tcc_artifact"


def test_the_header_compiles_alone_with_hostile_names(kernels: bytes, tmp_path: Path) -> None:
    b = programs.Builder()
    one = b.const(1)
    b.input('*/ "x"\\\n', "f32", [one], "[1] */")
    y = b.output("ÿ", "f32", [one], "[1]")
    b.allocate(y, b.const(4))
    b.launch("fill", one, [y], [one])
    programs.link(b.program(), kernels, tmp_path / "odd.so", name="odd")
    source = tmp_path / "use.c"
    source.write_text(
        '#include "odd.h"\n_Static_assert(ODD_INPUT_0_BYTES == 4 && ODD_OUTPUTS == 1, "");\n'
        "const char *name = ODD_INPUT_0_NAME;\n"
    )
    command = ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-c", "use.c", "-o", "use.o")
    subprocess.run(command, cwd=tmp_path, check=True)
    assert json.loads(json.dumps(read_manifest(tmp_path / "odd.so")))["inputs"][0]["shape"] == [1]


# ---- listings ------------------------------------------------------------------------------------


def test_listings_are_kept_outside_the_loaded_code(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    listed = {"relu": "define void @relu()", "add": "é" * 10}
    plain, with_listings = tmp_path / "plain.so", tmp_path / "kept.so"
    for out, listings in ((plain, {}), (with_listings, listed)):
        variant = Variant(
            "cpu", program, [weights], (kernels,),
            listings=listings,
        )  # fmt: skip
        link_artifact([variant], {}, "mini", out)
    assert read_listings(with_listings) == listed
    assert read_listings(plain) == {}
    headers = [
        subprocess.run(["readelf", "-lW", path], capture_output=True, check=True).stdout
        for path in (plain, with_listings)
    ]
    loaded = [[line for line in h.splitlines() if b"LOAD" in line] for h in headers]
    assert loaded[0] == loaded[1]
    np.testing.assert_array_equal(load(with_listings)(np.zeros(3, np.float32)), [1, 2, 3])


@pytest.mark.parametrize(
    "packed",
    [b"not deflated", zlib.compress(b"not JSON"), zlib.compress(b"[]"), zlib.compress(b'{"k": 3}')],
)
def test_damaged_listings_are_refused(
    packed: bytes, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcc.runtime.artifact_file.ArtifactFile._section", lambda *_: packed)
    with pytest.raises(UserError, match="damaged"):
        read_listings(artifact)


# ---- plans for several rank counts ---------------------------------------------------------------


def plan(kernels: bytes, ranks: int, prefix: str, state: int, other: int = 4) -> Variant:
    """Returns a plan whose ranks have a state of `state` floats each; its kernel names have
    `prefix`."""
    program = programs.updating(state, other)
    program = replace(program, kernels=tuple(prefix + name for name in program.kernels))
    weights = [[bytes([rank]) * 64] for rank in range(ranks)]
    return Variant(
        f"cpu {ranks}", program, (), (kernels,),
        ranks=ranks, rank_weights=weights,
    )  # fmt: skip


def two_plans(kernels: bytes, folder: Path, other: int = 4) -> list[Variant]:
    """Returns a plan for one rank with the whole state, and a plan for two ranks with half of it
    each."""
    (folder / "one.o").write_bytes(kernels)
    command = ("objcopy", "--prefix-symbols=two_", "one.o", "two.o")
    subprocess.run(command, cwd=folder, check=True)
    renamed = (folder / "two.o").read_bytes()
    return [plan(kernels, 1, "", 16), plan(renamed, 2, "two_", 8, other)]


def test_ranks_have_ranges_of_their_own_and_states_of_their_own_size(
    kernels: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "plans.so"
    link_artifact(two_plans(kernels, tmp_path), {"tcc": "test"}, "plans", out)
    manifest = read_manifest(out)
    one, two = manifest["variants"]
    assert manifest["inputs"][0]["shape"] == [16]
    assert "inputs" not in one
    assert "ranks" not in one
    assert two["ranks"] == 2
    assert [port["shape"] for port in two["inputs"]] == [[8], [4]]
    assert two["outputs"][0]["shape"] == [8]
    weights = find_weights(out, manifest)
    assert weights is not None
    data = out.read_bytes()[weights.offset : weights.offset + weights.size]
    for rank, offset in enumerate(two["weights"]["offsets"]):
        assert data[offset : offset + 64] == bytes([rank]) * 64
    assert two["weights"]["offsets"][0] == one["weights"]["offset"]  # Their bytes are equal.
    header = out.with_suffix(".h").read_text()
    assert "#define PLANS_INPUT_0_DIM_0 16\n" in header
    assert "#define PLANS_RANKS_2_INPUT_0_DIM_0 8\n" in header
    assert "#define PLANS_RANKS_2_OUTPUT_0_DIM_0 8\n" in header
    assert "PLANS_RANKS_2_INPUT_1" not in header
    assert [port.shape for port in load(out).inputs] == [(16,), (4,)]


def test_equal_weights_of_ranks_and_plans_lie_in_the_file_once(
    kernels: bytes, tmp_path: Path
) -> None:
    one, two = two_plans(kernels, tmp_path)
    rank_digests = [[b"c" * 64]]
    variants = [
        replace(one, rank_weights=rank_digests),
        replace(two, rank_weights=rank_digests * 2),
    ]
    manifest = link_artifact(variants, {}, "plans", tmp_path / "plans.so")
    assert manifest["weights"]["bytes"] == 64
    assert manifest["variants"][1]["weights"] == {"offset": 0, "bytes": 64, "offsets": [0, 0]}


def test_only_states_may_differ_between_plans(kernels: bytes, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="cpu 1 and cpu 2 have different ports"):
        link_artifact(two_plans(kernels, tmp_path, other=5), {}, "plans", tmp_path / "plans.so")
    one, two = two_plans(kernels, tmp_path)
    with pytest.raises(InternalError, match="cpu 1 and cpu 2 have different ports"):
        link_artifact(
            [one, replace(two, ranks=1, rank_weights=())], {}, "plans", tmp_path / "plans.so"
        )


@pytest.mark.parametrize("weights", [[[b"a"]], [[b"a"], [b"ab"]]], ids=["one rank's", "two sizes"])
def test_every_rank_has_weights_of_one_size(
    kernels: bytes, tmp_path: Path, weights: list[list[bytes]]
) -> None:
    _, two = two_plans(kernels, tmp_path)
    with pytest.raises(InternalError, match="weights of its ranks"):
        link_artifact([replace(two, rank_weights=weights)], {}, "plans", tmp_path / "plans.so")
