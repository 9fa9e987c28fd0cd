"""Available and used memory count control groups, helper processes and overlapping limits."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tcc.memory import HELPERS, at_most, data, is_limited, memory_here, taken, taken_together

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "files", "most"),
    [
        ("0::/\n", {}, MACHINE),
        ("0::/a/b\n", {f"{V2}/a/b/memory.max": "125829120"}, 120 << 20),
        ("0::/a/b\n", {f"{V2}/a/b/memory.max": "max", f"{V2}/a/memory.max": "99"}, 99),
        ("0::/host/path\n", {f"{V2}/memory.max": "77"}, 77),  # a container sees only its own
        ("0::/a\n", {f"{V2}/a/memory.max": str(1 << 62)}, MACHINE),
        ("4:memory:/a\n0::/\n", {f"{V1}/a/memory.limit_in_bytes": "55"}, 55),
        ("4:cpu,memory:/\n", {f"{V1}/memory.limit_in_bytes": "44"}, 44),
        ("4:memory:/docker/id\n", {f"{V1}/memory.limit_in_bytes": "33"}, 33),
        ("3:cpu:/a\n", {f"{V1}/a/memory.limit_in_bytes": "22"}, MACHINE),
        (None, {}, MACHINE),
    ],
)
def test_a_control_group_has_less_than_the_machine(
    groups: str | None, files: dict[str, str], most: int, tmp_path: Path
) -> None:
    listed = {} if groups is None else {"proc/self/cgroup": groups}
    for name, text in (listed | {name: f"{text}\n" for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_here(tmp_path) == most


def test_a_helper_process_counts_memory_taken_since_its_start() -> None:
    program = "data = bytearray(64 << 20); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdout.readline()
        assert 64 << 20 < taken(helper.pid) < 128 << 20
        taken_before = taken_together()
        for before, least, most in ((0, 64, 128), (32 << 20, 32, 96), (1 << 40, 0, 32)):
            HELPERS[helper.pid] = before
            assert least - 16 << 20 < taken_together() - taken_before < most + 16 << 20
        helper.stdin.close()
        helper.wait()
        assert taken(helper.pid) == 0
        del HELPERS[helper.pid]


def test_memory_that_no_one_has_touched_is_data_and_not_taken() -> None:
    before = taken(), data()
    untouched = np.empty(1 << 28, np.uint8)
    assert data() - before[1] > 200 << 20
    assert taken() - before[0] < 100 << 20
    del untouched


def test_limits_of_threads_that_overlap_leave_nothing_behind() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with at_most(1 << 45):
            begun.set()
            ended.wait()

    thread = threading.Thread(target=other)
    with at_most(1 << 46):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 46
        assert is_limited()
        thread.start()
        begun.wait()
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 45
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 45
    ended.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert not is_limited()
