"""Control groups of both versions, in trees of files that stand for the system's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from trials import HERE, RUNTIME, compile_c, includes

MIB = 1 << 20
NONE = "9223372036854771712"  # what version 1 says where there is no limit
ALL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("limits") / "limits"
    sources = [RUNTIME / "src" / name for name in ("limits.c", "groups.c", "status.c")]
    compile_c(
        "cc",
        ("-O1", "-Dfopen=open_below", *includes(RUNTIME)),
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
    """The files of version 1."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}", f"{folder}/cpu.cfs_period_us": f"{period}"}


# mounts, the process's groups, the files of the groups; CPUs and bytes that they leave
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


@pytest.mark.parametrize("case", CASES)
def test_control_groups(program: Path, tmp_path: Path, case: str) -> None:
    mounts, groups, files, cpus, size = CASES[case]
    tree = {"/proc/self/mountinfo": MOUNTS + mounts, "/proc/self/cgroup": groups, **files}
    for name, text in tree.items():
        path = tmp_path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
    told = {"PATH": os.environ["PATH"], "FAKE_ROOT": str(tmp_path)}
    result = subprocess.run([program], env=told, capture_output=True, text=True, check=True)
    found = [int(word) for word in result.stdout.split()]
    assert found[:2] == [cpus, size]
    threads, most = min(cpus or CPUS, CPUS), min(size or ALL, ALL)
    assert found[2:] == [threads, most - most // 4]
