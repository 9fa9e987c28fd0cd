"""Each opened file is attributed to its case, from a hand-written trace."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from traced import paths_by_case

TRACE = """\
7 openat(AT_FDCWD</home/me>, "/etc/hosts", O_RDONLY) = 3</etc/hosts>
7 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>
8 getpid() = 8
7 <... clone resumed>, child_tidptr=0x7f) = 8
8 chdir("/cases/good") = 0
8 openat(AT_FDCWD</cases/good>, "m.onnx", O_RDONLY) = 3</cases/good/m.onnx>
8 openat(AT_FDCWD</cases/good>, "/tmp/abc123/x.o", O_RDONLY) = 3</tmp/abc123/x.o>
8 openat(AT_FDCWD</cases/good>, "/proc/8/maps", O_RDONLY) = 3</proc/8/maps>
7 clone(child_stack=NULL, flags=SIGCHLD) = 9
9 chdir("/cases/bad") = 0
9 vfork( <unfinished ...>
10 execve("/bin/sh", ["sh"], 0x7ffc /* 3 vars */) = 0
9 <... vfork resumed>) = 10
9 openat(AT_FDCWD</cases/bad>, "../../etc/passwd", O_RDONLY) = 3</etc/passwd>
9 openat2(5</cases/bad>, "w.bin", {flags=O_RDONLY, resolve=RESOLVE_BENEATH}, 24) = 6
9 openat(6</secret>, "key", O_RDONLY) = 7</secret/key>
9 openat(AT_FDCWD</cases/bad>, "/proc/self/fd/7", O_RDONLY|O_CLOEXEC) = 8</secret/link>
9 newfstatat(AT_FDCWD</cases/bad>, "/etc/looked-at", 0x7ffc, 0) = 0
10 unlink("/cases/good/made.so") = 0
10 connect(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(80)}, 16) = 0
9 openat(AT_FDCWD</cases/bad>, "/tmp/other9/y.o", O_RDONLY) = 3</tmp/other9/y.o>
9 openat(AT_FDCWD</cases/bad>, "/proc/9/maps", O_RDONLY) = 3</proc/9/maps>
"""


def test_paths_belong_to_the_case_of_their_process(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(TRACE)
    paths = paths_by_case(trace, Path("/cases"), ROOT)
    assert paths["good"] == {"below the model", "/tmp/T/*", "/proc/N/maps"}
    assert paths["bad"] - paths["good"] == {
        "/bin/sh",
        "../../etc/passwd",
        "/secret/key",
        "/secret/link",
        "/cases/good/made.so",
        "the network",
    }
    assert set(paths) == {"good", "bad"}
