"""Files with several variants run the right variant on each machine, and refuse others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.artifact import find_weights, read_manifest
from tcc.backends.artifact import link as linking
from tcc.backends.artifact.gpu_binaries import BinaryKind, GpuImages, Platform
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.variant import Variant
from tcc.backends.artifact.weight_section import Range, Section
from tcc.errors import InternalError
from tcc.ir.program import IntOp
from tcc.runtime import load

from tests.lib.fake_gpu import gpu_programs
from tests.lib.fake_gpu.fakes import ARCHS, Driver, Fakes, in_child
from tests.lib.fake_gpu.gpu_programs import WEIGHTS

X = np.linspace(-1, 1, 20, dtype=np.float32)
CUDA, HIP = Platform.CUDA, Platform.HIP
# Every variant has different weights, so that results show which variant ran.
FACTORS = {"cuda": 1, "hip": 10, "cpu": 100}
ORDER = ("cuda", "hip", "cpu")


def weights(name: str) -> np.ndarray:
    return WEIGHTS * np.float32(FACTORS[name])


def expected(name: str) -> np.ndarray:
    return np.maximum(X, 0) + weights(name)[:20]


def variant(name: str, fakes: Fakes, kernels: bytes, features: Sequence[str] = ()) -> Variant:
    if name == "cpu":
        program, _ = programs.mlp()
        return Variant("cpu", program, [weights("cpu")], (kernels,), features)
    images = gpu_programs.images(fakes.kernels, Platform[name.upper()])
    return gpu_programs.gpu_variant(gpu_programs.mlp(), images, [weights(name)])


@pytest.fixture(scope="module")
def files(
    fakes: Fakes, kernels: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Returns a function that links variants of the given names, once."""
    folder = tmp_path_factory.mktemp("variants")

    def made(*names: str) -> Path:
        out = folder / f"{'_'.join(names)}.so"
        if not out.exists():
            link_artifact([variant(n, fakes, kernels) for n in names], {"tcc": "t"}, "mini", out)
        return out

    return made


def with_drivers(fakes: Fakes, platforms: Sequence[Platform], test: Callable[..., None]) -> None:
    """Runs `test` with a fake driver for each of the platforms, in a new process."""
    paths = [fakes.driver(platform) for platform in platforms]

    def child() -> None:
        drivers = [Driver(path, p) for path, p in zip(paths, platforms, strict=True)]
        for driver in drivers:
            driver.configure(ARCHS[driver.platform])
        test(*drivers)

    in_child(child)


@pytest.mark.parametrize(
    ("present", "names", "chosen"),
    [
        ((), ORDER, "cpu"),
        ((CUDA,), ORDER, "cuda"),
        ((HIP,), ORDER, "hip"),
        ((CUDA, HIP), ORDER, "cuda"),
        ((CUDA, HIP), ("hip", "cuda"), "hip"),
        ((CUDA, HIP), ("cpu", "cuda"), "cuda"),
        ((HIP,), ("cuda", "cpu"), "cpu"),
        ((HIP,), ("cuda", "hip"), "hip"),
    ],
)
def test_gpus_come_before_the_cpu_in_the_order_of_the_file(
    fakes: Fakes,
    files: Callable[..., Path],
    present: tuple[Platform, ...],
    names: tuple[str, ...],
    chosen: str,
) -> None:
    path = files(*names)

    def test(*_drivers: Driver) -> None:
        module = load(path)
        assert names[module.variant] == chosen
        assert np.array_equal(module(X), expected(chosen))
        assert module.statistics().weight_bytes == 256

    with_drivers(fakes, present, test)


def without_devices(driver: Driver) -> None:
    driver.configure(devices=0)


def failing_with_no_device(driver: Driver) -> None:
    driver.fail("cuInit", 1, 100)


def of_an_older_kind(driver: Driver) -> None:
    driver.configure("sm_75")


@pytest.mark.parametrize("spoil", [without_devices, failing_with_no_device, of_an_older_kind])
def test_a_driver_without_a_fitting_gpu_leaves_the_model_to_the_next(
    fakes: Fakes, files: Callable[..., Path], spoil: Callable[[Driver], None]
) -> None:
    on_cpu, on_hip = files("cuda", "cpu"), files("cuda", "hip")

    def test(cuda: Driver, _hip: Driver) -> None:
        for path, backend in ((on_cpu, "cpu"), (on_hip, "hip")):
            spoil(cuda)
            assert np.array_equal(load(path)(X), expected(backend))

    with_drivers(fakes, (CUDA, HIP), test)


def test_a_driver_that_fails_is_not_passed_over(fakes: Fakes, files: Callable[..., Path]) -> None:
    path = files("cuda", "cpu")

    def test(cuda: Driver) -> None:
        for name in ("cuInit", "cuModuleLoadDataEx"):
            cuda.fail(name, 1, 999)
            with pytest.raises(RuntimeError, match=r"error 999.*on the CPU too: TCC_DEVICE=cpu"):
                load(path)
        assert not any(cuda.live().values())
        assert np.array_equal(load(path)(X), expected("cuda"))

    with_drivers(fakes, (CUDA,), test)


def test_the_environment_chooses(fakes: Fakes, files: Callable[..., Path]) -> None:
    two_targets, gpus = files("cuda", "cpu"), files("cuda", "hip")

    def test(*drivers: Driver) -> None:
        os.environ["TCC_DEVICE"] = "cpu"
        assert np.array_equal(load(two_targets)(X), expected("cpu"))
        assert not any("cuInit" in name for driver in drivers for name in driver.names())
        with pytest.raises(RuntimeError, match=r"compiled for GPUs only.*\+cpu"):
            load(gpus)
        os.environ["TCC_DEVICE"] = "0"
        if drivers:
            assert np.array_equal(load(two_targets)(X), expected("cuda"))
            return
        with pytest.raises(RuntimeError, match=r"no CUDA driver.*TCC_DEVICE=cpu"):
            load(two_targets)

    with_drivers(fakes, (CUDA,), test)
    with_drivers(fakes, (), test)


def test_where_nothing_fits_all_reasons_are_told(
    fakes: Fakes, files: Callable[..., Path], kernels: bytes, tmp_path: Path
) -> None:
    gpus, none = files("cuda", "hip"), tmp_path / "none.so"
    link_artifact([variant("cuda", fakes, kernels)], {}, "mini", none)

    def test(cuda: Driver) -> None:
        cuda.configure("sm_75")
        with pytest.raises(
            RuntimeError,
            match=r"is a sm_75, .* compiled for sm_90: .*--target cuda:sm_75; no HIP driver",
        ):
            load(gpus)
        with pytest.raises(RuntimeError, match="is a sm_75"):
            load(none)

    with_drivers(fakes, (CUDA,), test)


def test_a_cpu_that_lacks_a_feature_and_a_gpu_that_is_missing_are_both_named(
    fakes: Fakes, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = linking.variant_source.__globals__["isa_feature"]("sse3")
    impossible = type(row)("made-up-feature", 7, 0, 3, 31, 1 << 62)
    monkeypatch.setattr("tcc.backends.artifact.variant.isa_feature", lambda name: impossible)
    path = tmp_path / "x.so"
    listed = [variant("cuda", fakes, kernels), variant("cpu", fakes, kernels, ["made-up"])]
    link_artifact(listed, {}, "mini", path)

    def test() -> None:
        with pytest.raises(RuntimeError, match=r"made-up-feature.*; no CUDA driver was found"):
            load(path)

    with_drivers(fakes, (), test)


# ---- plans for several ranks ---------------------------------------------------------------------


def test_ranks_bring_their_own_weights_to_their_gpus(
    fakes: Fakes, kernels: bytes, tmp_path: Path
) -> None:
    """The plan for two ranks is taken, and this process is the second rank."""
    one, path = variant("cuda", fakes, kernels), tmp_path / "plans.so"
    weights_of_ranks = [[WEIGHTS * np.float32(factor)] for factor in (2, 3)]
    two = replace(one, target="cuda on 2 ranks", ranks=2, weights=(), rank_weights=weights_of_ranks)
    link_artifact([one, two, variant("cpu", fakes, kernels)], {}, "mini", path)

    def test(cuda: Driver) -> None:
        assert np.array_equal(load(path)(X), expected("cuda"))
        os.environ.update(TCC_RANK="1", TCC_SIZE="2", TCC_RENDEZVOUS="here")
        module = load(path)
        assert module.variant == 1
        assert np.array_equal(module(X), np.maximum(X, 0) + weights_of_ranks[1][0][:20])
        del module
        os.environ["TCC_SIZE"] = "3"
        with pytest.raises(RuntimeError, match=r"the job has 3 ranks, .*of ranks: 1, 2: "):
            load(path)
        os.environ.update(TCC_SIZE="2", TCC_DEVICE="cpu")
        with pytest.raises(RuntimeError, match="compiled for GPUs only"):
            load(path)

    with_drivers(fakes, (CUDA,), test)


# ---- PTX ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "listed", "chosen"),
    [
        ("sm_100", "sm_90a cubin, sm_80 ptx", "sm_80 ptx"),
        ("sm_120", "sm_90a cubin, sm_80 ptx", "sm_80 ptx"),
        ("sm_90", "sm_90a cubin, sm_80 ptx", "sm_90a cubin"),
        ("sm_86", "sm_80 cubin, sm_80 ptx", "sm_80 cubin"),
        ("sm_120", "sm_100a cubin, sm_89 ptx, sm_80 cubin, sm_80 ptx", "sm_89 ptx"),
        ("sm_103", "sm_100a cubin, sm_89 ptx", "sm_89 ptx"),
    ],
)
def test_the_best_code_of_all_variants_is_chosen(
    fakes: Fakes, tmp_path: Path, device: str, listed: str, chosen: str
) -> None:
    """The code lies once in one variant, and once in a variant per image."""
    tables_made = []
    for entry in listed.split(", "):
        arch, form = entry.split()
        copy = tmp_path / f"{entry}.so"
        copy.symlink_to(fakes.kernels)
        tables_made.append(gpu_programs.variant(copy, arch, BinaryKind[form.upper()]))
    files = {}
    for name, tables in (("one", [tables_made]), ("each", [[code] for code in tables_made])):
        images = [GpuImages(CUDA, tuple(codes)) for codes in tables]
        program = gpu_programs.mlp()
        variants = [gpu_programs.gpu_variant(program, i, [WEIGHTS]) for i in images]
        files[name] = tmp_path / f"{name}.so"
        link_artifact(variants, {}, "mini", files[name])

    def test(driver: Driver) -> None:
        driver.configure(device)
        for path in files.values():
            module = load(path)
            assert driver.loaded() == [str(tmp_path / f"{chosen}.so")]
            assert np.array_equal(module(X), np.maximum(X, 0) + WEIGHTS[:20])

    with_drivers(fakes, (CUDA,), test)


# ---- contents of a file --------------------------------------------------------------------------


def test_equal_weights_are_stored_once(fakes: Fakes, kernels: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    variants = [variant(name, fakes, kernels) for name in ("cuda", "cpu", "hip")]
    shared = [variants[0], variants[1], replace(variants[2], weights=[weights("cuda")])]
    link_artifact(shared, {}, "mini", path)
    manifest = read_manifest(path)
    places = [v["weights"] for v in manifest["variants"]]
    assert places[0] == places[2] == {"offset": 0, "bytes": 256}
    assert places[1] == {"offset": 65536, "bytes": 256}
    section = find_weights(path, manifest)
    assert section is not None
    data = path.read_bytes()[section.offset : section.offset + section.size]
    assert data[65536 : 65536 + 256] == weights("cpu").tobytes()
    for entry in (manifest["variants"][0], manifest["variants"][2]):
        assert entry["gpu"]["offset"] % 64 == 0
        assert data[entry["gpu"]["offset"] :].startswith(b"tTCCIMG\x01")


def test_equal_variants_give_equal_bytes(fakes: Fakes, kernels: bytes, tmp_path: Path) -> None:
    paths = tmp_path / "a" / "x.so", tmp_path / "b" / "x.so"
    for out in paths:
        link_artifact([variant(n, fakes, kernels) for n in ORDER], {}, "mini", out)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def other_ports(fakes: Fakes, kernels: bytes) -> list[Variant]:
    b = programs.Builder()
    n = b.let(IntOp.DIM, 0, 0)
    b.input("other", "f32", [n], "[n]")
    y = b.output("y", "f32", [n], "[n]")
    b.allocate(y, b.let(IntOp.MUL, n, b.const(4)))
    b.launch("fill", n, [y], [n])
    program = b.program()
    cpu = Variant("cpu", program, objects=(kernels,))
    return [variant("cuda", fakes, kernels), cpu]


def test_variants_of_other_ports_are_refused(
    fakes: Fakes, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, path = other_ports(fakes, kernels), tmp_path / "x.so"
    with pytest.raises(InternalError, match="cuda and cpu have different ports"):
        link_artifact(others, {}, "mini", path)
    monkeypatch.setattr(linking, "check_variants", lambda variants: None)
    link_artifact(others, {}, "mini", path)

    def test(*_drivers: Driver) -> None:
        with pytest.raises(RuntimeError, match=r"damaged.*cuda.*different inputs or outputs"):
            load(path)

    with_drivers(fakes, (CUDA,), test)
    with_drivers(fakes, (), test)


def test_variants_that_link_kernels_of_one_name_are_refused(
    fakes: Fakes, kernels: bytes, tmp_path: Path
) -> None:
    twice = [variant("cpu", fakes, kernels)] * 2
    with pytest.raises(InternalError, match="kernels of one name"):
        link_artifact(twice, {}, "mini", tmp_path / "x.so")
    with pytest.raises(InternalError, match="needs a variant"):
        link_artifact([], {}, "mini", tmp_path / "x.so")


@pytest.mark.parametrize(
    ("field", "wrong", "why"),
    [
        ("images", Range(1 << 40, 64), "their weights are not in it"),
        ("images", Range(64, 1 << 62), "their weights are not in it"),
        ("images", Range(65600, 100), "no magic number"),
        ("images", Range(1, 100), "their weights are not in it"),
        ("images", Range(0, 8), "no header"),
        ("weights", Range(0, 1 << 62), "their weights are not in it"),
        ("weights", Range(1 << 62, 256), "their weights are not in it"),
    ],
)
def test_wild_places_are_refused(
    fakes: Fakes,
    kernels: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    wrong: Range,
    why: str,
) -> None:
    """The wrong place is the first variant's, which is for CUDA."""
    damaged(monkeypatch, lambda s: replace(s, **{field: (wrong, *getattr(s, field)[1:])}))
    path = tmp_path / "x.so"
    link_artifact([variant(n, fakes, kernels) for n in ("cuda", "cpu")], {}, "mini", path)

    def test(*_drivers: Driver) -> None:
        with pytest.raises(RuntimeError, match=f"damaged: .*{why}"):
            load(path)

    with_drivers(fakes, (CUDA,), test)
    with_drivers(fakes, (), test)


@pytest.mark.parametrize("wrong", [Range(100, 256), Range(0, 1 << 62), Range(1 << 62, 256)])
def test_wild_places_of_the_cpus_weights_are_refused(
    fakes: Fakes, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Range
) -> None:
    damaged(monkeypatch, lambda s: replace(s, weights=(wrong,)))
    path = tmp_path / "x.so"
    link_artifact([variant("cpu", fakes, kernels)], {}, "mini", path)
    with pytest.raises(RuntimeError, match="damaged: its weights are not in it"):
        load(path)


def damaged(monkeypatch: pytest.MonkeyPatch, damage: Callable[[Section], Section]) -> None:
    """Makes the link step write damaged places."""
    lay_out = linking.lay_out
    monkeypatch.setattr(linking, "lay_out", lambda *arguments: damage(lay_out(*arguments)))
