"""Limits of control groups of both versions are read, from trees of files that stand for the
system's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from trials import HERE, RUNTIME, SYSTEM, compile_c, includes

MIB = 1 << 20
NONE = "9223372036854771712"  # version 1 writes this number if there is no limit
ALL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CPUS = len(os.sched_getaffinity(0))
WATCHED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("limits") / "limits"
    sources = [RUNTIME / "src" / name for name in (*SYSTEM, "budget.c")]
    compile_c(
        "cc",
        ("-O1", "-g", *WATCHED, "-Dfopen=open_below", *includes(RUNTIME)),
        [HERE / "limits.c", *sources],
        binary,
    )
    return binary


MOUNTS = "22 1 8:1 / / rw,relatime - ext4 /dev/vda rw\n25 22 0:22 / /proc rw - proc proc rw\n"
SECOND = "30 22 0:26 {top} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST = (
    "31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/memory rw master:1 - cgroup cgroup rw,memory\n"
    "34 31 0:31 {top} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
HYBRID = FIRST + "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
IN_FIRST = "12:cpuset:{0}\n4:cpu,cpuacct:{0}\n3:memory:{0}\n1:name=systemd:{0}\n"
V2, CPU, MEMORY = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"


def quota(folder: str, quota: int, period: int = 100000) -> dict[str, str]:
    """Returns the CPU limit files of version 1."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}", f"{folder}/cpu.cfs_period_us": f"{period}"}


# (mounts, the process's groups, the groups' files, the CPUs, the bytes)
CASES: dict[str, tuple[str, str, dict[str, str], int, int]] = {
    "version 2": (
        SECOND.format(top="/"), "0::/a/b\n",
        {f"{V2}/a/b/cpu.max": "150000 100000", f"{V2}/a/b/memory.max": f"{64 * MIB}"}, 2, 64 * MIB,
    ),
    "version 2: the tightest group around": (
        SECOND.format(top="/"), "0::/a/b/c\n",
        {f"{V2}/a/b/c/cpu.max": "max 100000", f"{V2}/a/b/cpu.max": "300000 100000",
         f"{V2}/a/cpu.max": "100000 50000", f"{V2}/a/b/c/memory.max": f"{90 * MIB}",
         f"{V2}/a/b/memory.max": "max", f"{V2}/a/memory.max": f"{80 * MIB}"}, 2, 80 * MIB,
    ),
    "version 1: half a CPU": (
        FIRST.format(top="/"), IN_FIRST.format("/a"),
        {**quota(f"{CPU}/a", 50000), f"{MEMORY}/a/memory.limit_in_bytes": f"{64 * MIB}"},
        1, 64 * MIB,
    ),
    "version 1: the tightest group around": (
        FIRST.format(top="/"), IN_FIRST.format("/a/b"),
        {**quota(f"{CPU}/a/b", -1), **quota(f"{CPU}/a", 290000), **quota(CPU, 900000),
         f"{MEMORY}/a/b/memory.limit_in_bytes": NONE,
         f"{MEMORY}/a/memory.limit_in_bytes": f"{70 * MIB}"}, 3, 70 * MIB,
    ),
    "version 1: no limit": (
        FIRST.format(top="/"), IN_FIRST.format("/"),
        {**quota(CPU, -1), f"{MEMORY}/memory.limit_in_bytes": NONE}, 0, int(NONE),
    ),
    "hybrid: limits of version 1, version 2 without controllers": (
        HYBRID.format(top="/"), IN_FIRST.format("/a") + "0::/user.slice\n",
        {**quota(f"{CPU}/a", 120000), f"{MEMORY}/a/memory.limit_in_bytes": f"{64 * MIB}"},
        2, 64 * MIB,
    ),
    "container, version 1: a part of the hierarchy is mounted": (
        FIRST.format(top="/docker/4e1"), IN_FIRST.format("/docker/4e1/inner"),
        {**quota(CPU, 100000), f"{MEMORY}/inner/memory.limit_in_bytes": f"{64 * MIB}"}, 1, 64 * MIB,
    ),
    "container: the process's group is outside what is mounted": (
        SECOND.format(top="/docker/4e1"), "0::/../outer\n",
        {f"{V2}/cpu.max": "100000 100000", f"{V2}/memory.max": f"{64 * MIB}"}, 1, 64 * MIB,
    ),
    "container: another group with a name that begins alike": (
        SECOND.format(top="/docker/4e1"), "0::/docker/4e12\n",
        {f"{V2}/cpu.max": "100000 100000", f"{V2}2/cpu.max": "900 100000"}, 1, 0,
    ),
    "mounted elsewhere, at a path with a space": (
        "30 22 0:26 / /odd\\040place rw - cgroup2 none rw\n", "0::/a\n",
        {"/odd place/a/cpu.max": "100000 100000"}, 1, 0,
    ),
    "nonsense in the files": (
        "x\n - cgroup2\n" + SECOND.format(top="/"), "0\n\n:::\n0::/a\n",
        {f"{V2}/a/cpu.max": "many", f"{V2}/a/memory.max": "-5"}, 0, 0,
    ),
    "no groups": ("", "", {}, 0, 0),
}  # fmt: skip


def run(program: Path, root: Path, files: dict[str, str], *takes: int) -> list[str]:
    """Returns the program's output on the system that these files describe."""
    for name, text in files.items():
        path = root / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
    told = {"PATH": os.environ["PATH"], "FAKE_ROOT": str(root)}
    command = (program, *map(str, takes))
    result = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


@pytest.mark.parametrize("case", CASES)
def test_control_groups(program: Path, tmp_path: Path, case: str) -> None:
    mounts, groups, files, cpus, size = CASES[case]
    tree = {"/proc/self/mountinfo": MOUNTS + mounts, "/proc/self/cgroup": groups, **files}
    lines = run(program, tmp_path, tree)
    assert lines[0] == f"{cpus} {min(cpus or CPUS, CPUS)}"
    bound = 0 < size < ALL
    whose, limit = ("its control group", size) if bound else ("the machine", ALL)
    assert lines[1] == f"{limit} {limit} 0 {whose}"


# ---- available memory ----------------------------------------------------------------------------


def second(folder: str, limit: str | int, used: int = 0, files: int = 0) -> dict[str, str]:
    """Returns the files of a group of version 2; numbers are in MiB."""
    stat = f"anon {used * MIB}\ninactive_anon 77\nactive_file 99\ninactive_file {files * MIB}\n"
    return {
        f"{folder}/memory.max": f"{limit * MIB if isinstance(limit, int) else limit}",
        f"{folder}/memory.current": f"{used * MIB}",
        f"{folder}/memory.stat": stat,
    }


def first(folder: str, limit: int, used: int = 0, files: int = 0) -> dict[str, str]:
    """Returns the files of a group of version 1, where numbers without `total_` exclude inner
    groups."""
    stat = f"cache 5\ninactive_file 7\ntotal_cache 9\ntotal_inactive_file {files * MIB}\n"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit * MIB}" if limit else NONE,
        f"{folder}/memory.usage_in_bytes": f"{used * MIB}",
        f"{folder}/memory.stat": stat,
    }


def machine(available: int) -> dict[str, str]:
    lines = f"MemTotal:  {1000 << 10} kB\nMemFree:  5 kB\nMemAvailable:  {available << 10} kB\n"
    return {"/proc/meminfo": lines}


def around(version: int, group: str = "/a/b") -> dict[str, str]:
    mounts = SECOND.format(top="/") if version == 2 else FIRST.format(top="/")
    groups = f"0::{group}\n" if version == 2 else IN_FIRST.format(group)
    return {"/proc/self/mountinfo": MOUNTS + mounts, "/proc/self/cgroup": groups}


GROUP, MACHINE = "its control group", "the machine"
# (the files, available MiB, the limit, used MiB, whose limit it is)
ROOMS: dict[str, tuple[dict[str, str], int, int, int, str]] = {
    "version 2": (
        around(2) | machine(900) | second(f"{V2}/a/b", 300, 120, 30), 210, 300, 120, GROUP,
    ),
    "version 1": (
        around(1) | machine(900) | first(f"{MEMORY}/a/b", 300, 120, 30), 210, 300, 120, GROUP,
    ),
    "a larger group around is fuller": (
        around(2) | machine(900) | second(f"{V2}/a/b", 300, 120, 30) | second(f"{V2}/a", 500, 450),
        50, 500, 450, GROUP,
    ),
    "version 1: a larger group around is fuller": (
        around(1) | machine(900) | first(f"{MEMORY}/a/b", 0, 10)
        | first(f"{MEMORY}/a", 500, 450, 5), 55, 500, 450, GROUP,
    ),
    "the machine is fuller": (
        around(2) | machine(100) | second(f"{V2}/a/b", 300, 120, 30), 100, 1000, 900, MACHINE,
    ),
    "no limit": (
        around(2) | machine(700) | second(f"{V2}/a/b", "max", 120), 700, 1000, 300, MACHINE,
    ),
    "more in use than the limit allows": (
        around(2) | machine(900) | second(f"{V2}/a/b", 300, 320, 10), 0, 300, 320, GROUP,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOMS)
def test_the_remaining_memory_is_read_from_the_system(
    program: Path, tmp_path: Path, case: str
) -> None:
    files, left_mib, limit, used_mib, whose = ROOMS[case]
    lines = run(program, tmp_path, files)
    assert lines[1] == f"{left_mib * MIB} {limit * MIB} {used_mib * MIB} {whose}"


@pytest.mark.parametrize("version", [1, 2])
def test_a_process_may_use_three_quarters_of_the_remaining_memory(
    program: Path, tmp_path: Path, version: int
) -> None:
    """The files do not change here, so that allocated memory counts as if others had freed it."""
    numbers = (300, 120, 20)
    group = first(f"{MEMORY}/a/b", *numbers) if version == 1 else second(f"{V2}/a/b", *numbers)
    files = around(version) | machine(900) | group
    (tmp_path / "one").mkdir()
    assert run(program, tmp_path / "one", files, 150 * MIB)[2].endswith("taken")
    refused = run(program, tmp_path / "one", files, 150 * MIB + 1)[2]
    assert refused.endswith(
        f"out of memory: the process holds 0 bytes and asks for {150 * MIB + 1} more; its control "
        f"group leaves it {150 * MIB} ({120 * MIB} of {300 * MIB} are in use)"
    )
    some = run(program, tmp_path / "one", files, 80 * MIB, 131 * MIB, 130 * MIB)
    assert [line.split()[1] for line in some[2:]] == ["taken", "out", "taken"]


def test_growths_of_a_few_bytes_read_nothing(program: Path, tmp_path: Path) -> None:
    files = around(2) | machine(900) | second(f"{V2}/a/b", 300, 100)
    lines = run(program, tmp_path, files, 1 << 16, 1 << 20, 1 << 20, 1 << 20, 0, 4 * MIB)
    opened = [int(line.split()[0]) for line in lines[2:]]
    # three quarters of 200 MiB, of which a 64th is 2.3 MiB
    assert [number > 0 for number in opened] == [True, False, False, True, False, True]
