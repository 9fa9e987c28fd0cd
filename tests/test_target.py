"""Targets: spellings, the table of processors, and CPUID bits agree with LLVM's detection."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from llvmlite import binding
from tcc.backends.cpu.detect import _cache_sizes, detect
from tcc.backends.cpu.instructions import llvm_features
from tcc.errors import UserError
from tcc.target import (
    ARM_ISA,
    CPU_TRIPLES,
    CPUS,
    GPU_DEFAULTS,
    GPUS,
    ISA,
    Profile,
    Target,
    cpu_profile,
    parse_target,
    parse_targets,
    targets_text,
)

CPUID = """
#include <cpuid.h>
#include <stdio.h>
int main(void) {
    unsigned leaf, subleaf, reg, bit, r[4];
    while (scanf("%u %u %u %u", &leaf, &subleaf, &reg, &bit) == 4)
        printf("%d\\n", __get_cpuid_count(leaf, subleaf, r, r + 1, r + 2, r + 3) &&
                           r[reg] >> bit & 1);
    return 0;
}
"""


def no_detection() -> Profile:
    raise AssertionError("a named processor needs no detection")


def test_spellings_of_the_host_cpu_mean_the_same() -> None:
    profile = CPUS["x86-64-v3"]
    plain, full = (parse_target(t, "host", lambda: profile) for t in ("cpu", "cpu:x86-64"))
    assert plain == full
    assert plain.profile is profile
    assert plain.triple == "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize("text", ["", "gpu", "cpu:", "cpu:riscv", "CPU"])
def test_unknown_targets_name_the_known_ones(text: str) -> None:
    with pytest.raises(UserError, match="unknown target") as caught:
        parse_target(text, "host", no_detection)
    assert "cpu, cpu:x86-64" in str(caught.value)


@pytest.mark.parametrize("name", list(CPUS))
def test_named_processors_need_no_detection(name: str) -> None:
    profile = parse_target("cpu", name, no_detection).profile
    assert profile.cpu == name
    assert profile.l1 < profile.l2 < profile.l3


@pytest.mark.parametrize(
    ("name", "bits", "tile"),
    [
        ("x86-64-v2", 128, (6, 2)),
        ("x86-64-v3", 256, (6, 2)),
        ("znver4", 512, (6, 4)),
        ("neoverse-n1", 128, (8, 3)),
    ],
)
def test_vectors_follow_the_features(name: str, bits: int, tile: tuple[int, int]) -> None:
    profile = CPUS[name]
    assert (profile.vector_bits, profile.tile) == (bits, tile)
    rows, vectors = profile.tile
    assert rows * vectors + vectors + 1 <= profile.vector_registers, "accumulators and operands fit"


@pytest.mark.parametrize(
    ("name", "half", "pairs", "scales"),
    [
        ("x86-64-v2", False, False, False),
        ("x86-64-v3", True, False, False),
        ("icelake-server", True, False, True),
        ("znver4", True, True, True),
        ("sapphirerapids", True, True, True),
        ("cortex-a72", True, False, False),
    ],
)
def test_profiles_name_the_abilities_of_processors(
    name: str, half: bool, pairs: bool, scales: bool
) -> None:
    profile = CPUS[name]
    assert profile.converts_half == half
    assert profile.multiplies_pairs == pairs
    assert profile.scales_by_exponent == scales


def test_profiles_keep_the_features_of_the_table_only_and_in_order() -> None:
    shuffled = [*reversed(CPUS["x86-64-v3"].features), "rtm", "sha"]
    assert cpu_profile("x86-64", "x86-64-v3", shuffled, l1=1, l2=2, l3=3).features == (
        CPUS["x86-64-v3"].features
    )
    with pytest.raises(UserError, match="too old"):
        cpu_profile("x86-64", "core2", ["sse3", "ssse3"], l1=1, l2=2, l3=3)


@pytest.mark.parametrize("name", list(CPUS))
def test_llvm_knows_the_names_and_keeps_whole_vectors(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    profile = CPUS[name]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(CPU_TRIPLES[profile.arch]).create_target_machine(
        cpu=name, features=llvm_features(profile)
    )
    lanes = profile.lanes(32)
    code = machine.emit_assembly(
        binding.parse_assembly(
            f"define <{lanes} x float> @f(<{lanes} x float> %a, <{lanes} x float> %b) {{\n"
            f"  %c = fadd <{lanes} x float> %a, %b\n  ret <{lanes} x float> %c\n}}"
        )
    )
    additions = re.findall(r"^\tv?(?:fadd|addps)\S*\t.*", code, re.M)
    assert len(additions) == 1, "a vector is cut in parts"
    assert capfd.readouterr().err == "", "LLVM warns of names it does not know"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_cpuid_reports_each_feature_where_the_table_says(tmp_path: Path) -> None:
    (tmp_path / "cpuid.c").write_text(CPUID)
    subprocess.run(["cc", "cpuid.c", "-o", "cpuid"], cwd=tmp_path, check=True)
    questions = "\n".join(f"{f.leaf} {f.subleaf} {f.reg} {f.bit}" for f in ISA)
    process = subprocess.run(
        [tmp_path / "cpuid"], input=questions, capture_output=True, text=True, check=True
    )
    reported = {f.name for f, bit in zip(ISA, process.stdout.split(), strict=True) if bit == "1"}
    llvm = binding.get_host_cpu_features()
    assert reported == {f.name for f in ISA if llvm.get(f.name)}
    assert detect().features == tuple(f.name for f in ISA if f.name in reported)


@pytest.mark.parametrize("header", [Path("/usr/aarch64-linux-gnu/include/asm/hwcap.h")])
def test_the_system_reports_features_of_arm_where_the_table_says(header: Path) -> None:
    if not header.is_file():
        pytest.skip("needs the headers of libc6-dev-arm64-cross")
    linux_names = {
        **{"neon": "ASIMD", "crc": "CRC32", "lse": "ATOMICS", "fullfp16": "ASIMDHP"},
        **{"rdm": "ASIMDRDM", "jsconv": "JSCVT", "complxnum": "FCMA", "rcpc": "LRCPC"},
        **{"dotprod": "ASIMDDP", "fp16fml": "ASIMDFHM", "i8mm": "I8MM", "bf16": "BF16"},
    }
    text = header.read_text()
    for feature in ARM_ISA:
        prefix = {16: "HWCAP", 26: "HWCAP2"}[feature.leaf]
        match = re.search(rf"{prefix}_{linux_names[feature.name]}\s+\(1U?L? << (\d+)\)", text)
        assert match, feature.name
        assert int(match[1]) == feature.bit, feature.name


def test_processors_and_architectures_fit() -> None:
    target = parse_target("cpu:aarch64", "neoverse-n1", no_detection)
    assert (target.triple, target.text) == (
        "aarch64-unknown-linux-gnu",
        "cpu:aarch64 (neoverse-n1)",
    )
    assert parse_target("cpu", "neoverse-n1", no_detection) == target, "the processor tells"
    assert parse_target("cpu:aarch64", "host", lambda: CPUS["znver4"]).profile.cpu == "generic"
    assert parse_target("cpu:x86-64", "host", lambda: target.profile).profile.cpu == "x86-64-v2"
    assert parse_target("cpu", "host", lambda: target.profile) == target
    with pytest.raises(UserError, match="of the architecture x86-64") as caught:
        parse_target("cpu:aarch64", "x86-64-v3", no_detection)
    assert "neoverse-n1" in caught.value.hint


def test_gpus_beside_an_arm_processor_have_a_host_of_that_kind() -> None:
    gpu, cpu = parse_targets("cuda:sm_90+cpu:aarch64", "neoverse-v1", no_detection)
    assert gpu.triple == cpu.triple == "aarch64-unknown-linux-gnu"
    assert (gpu.profile.cpu, cpu.profile.cpu) == ("generic", "neoverse-v1")


def test_an_arm_machine_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"neon": True, "dotprod": True, "lse": True, "sve": True, "bf16": False}
    monkeypatch.setattr("tcc.backends.cpu.detect.platform.machine", lambda: "aarch64")
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "neoverse-n1")
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    profile = detect()
    assert (profile.arch, profile.features) == ("aarch64", ("neon", "lse", "dotprod"))
    assert "+dotprod" in llvm_features(profile)
    assert "-sve" in llvm_features(profile).split(",")


def test_cache_sizes_come_from_data_and_unified_caches(tmp_path: Path) -> None:
    rows = (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"))
    for index, (level, kind, size) in enumerate(rows):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert _cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20}
    assert _cache_sizes(tmp_path / "absent") == {}


# ---- GPUs ---------------------------------------------------------------------------------------


def gpu_target(text: str) -> Target:
    return parse_target(text, "host", no_detection)


def test_a_bare_kind_is_a_fixed_list_of_architectures() -> None:
    target = gpu_target("rocm")
    assert target.archs == GPU_DEFAULTS["rocm"]
    assert [g.text for g in target.gpus] == [f"rocm:{arch}" for arch in GPU_DEFAULTS["rocm"]]
    assert {f"{kind}:{a}" for kind, archs in GPU_DEFAULTS.items() for a in archs} <= set(GPUS)


def test_architectures_are_named_one_by_one() -> None:
    target = gpu_target("cuda:sm_90,sm_80,sm_90")
    assert target.text == "cuda:sm_90,sm_80"
    assert [(g.arch, g.warp) for g in target.gpus] == [("sm_90", 32), ("sm_80", 32)]
    assert target.profile is CPUS["x86-64-v2"], "the host's part runs anywhere"


@pytest.mark.parametrize("text", ["vulkan", "cuda:", "cuda:sm_90,", "cuda:gfx942", "rocm:sm_90"])
def test_an_unknown_gpu_is_refused_with_a_list(text: str) -> None:
    with pytest.raises(UserError, match="unknown target") as caught:
        gpu_target(text)
    assert "rocm:gfx942" in caught.value.hint


def test_a_processor_beside_a_gpu_is_refused() -> None:
    with pytest.raises(UserError, match="not made for a processor"):
        parse_target("cuda", "x86-64-v3", no_detection)


def test_profiles_are_in_their_units() -> None:
    for name, profile in GPUS.items():
        assert profile.text == name
        assert profile.warp in (32, 64)
        assert 32 << 10 <= profile.shared <= 256 << 10
        assert 5e10 < profile.bandwidth < 1e13  # an integrated GPU has its host's memory
        f32, f16 = profile.peak("f32"), profile.peak("f16")
        assert f32 is not None
        assert f16 is not None
        assert 5e12 < f32 < f16 < 1e16
        assert profile.peak("f4") is None


# ---- several targets -----------------------------------------------------------------------------


def test_a_plus_joins_targets_in_their_order() -> None:
    text = "cuda:sm_80,sm_90+rocm:gfx942+cpu"
    targets = parse_targets(text, "x86-64-v3", no_detection)
    assert [(target.kind, target.archs) for target in targets] == [
        ("cuda", ("sm_80", "sm_90")), ("rocm", ("gfx942",)), ("cpu", ("x86-64",)),
    ]  # fmt: skip
    # --cpu names the processor of the CPU part only
    assert [target.profile.cpu for target in targets] == ["x86-64-v2", "x86-64-v2", "x86-64-v3"]
    assert targets_text(targets) == "cuda:sm_80,sm_90+rocm:gfx942+cpu:x86-64 (x86-64-v3)"
    (target_alone,) = parse_targets("rocm", "host", no_detection)
    assert target_alone == parse_target("rocm", "host", no_detection)


@pytest.mark.parametrize(
    ("text", "cpu", "what", "hint"),
    [
        ("cuda+cuda:sm_90", "host", "names cuda twice", "with commas"),
        ("cpu+cpu", "host", "names cpu twice", "with commas"),
        ("cuda+metal", "host", "unknown target 'metal'", "joins several"),
        ("cuda+", "host", "unknown target ''", "rocm:gfx942"),
        ("cuda+rocm", "x86-64-v3", "not made for a processor", "+cpu"),
    ],
)
def test_joined_targets_that_are_refused(text: str, cpu: str, what: str, hint: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        parse_targets(text, cpu, no_detection)
    assert hint in caught.value.hint
