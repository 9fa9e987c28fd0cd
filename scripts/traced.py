"""Lists the paths that the processes of each hostile case open, from one trace of the whole run.

    strace -f -y -o TRACE scripts/hostile --inside      every case is a process in its folder

A process belongs to the case whose folder it enters, or else to its parent's case. Paths are
generalised so that those of two compiles are equal. This concerns paths below the model's folder,
process ids, names of temporary files, and Python's modules.
"""

import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

STRACE = (
    "strace", "-f", "-y", "-qq", "--seccomp-bpf",
    "-e", "trace=%file,%network,clone,clone3,fork,vfork",
)  # fmt: skip
_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_MAKES = ("clone", "clone3", "fork", "vfork")
# System calls that open, run or change a file. The remaining calls that strace reports only test
# if a file exists, so they do not count.
_TOUCHES = re.compile(
    "open|openat|openat2|creat|execve|execveat|unlink|unlinkat|rename|renameat|renameat2|mkdir|"
    "mkdirat|rmdir|link|linkat|symlink|symlinkat|truncate|chmod|fchmodat|chown|fchownat|mknodat"
)
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"')
_MODULES = tuple(
    {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.base_prefix, sys.prefix}
)


def paths_by_case(trace: Path, folder: Path, root: Path) -> dict[str, set[str]]:
    """Maps each case to the paths that its processes opened, from the output of strace.

    A case is a folder in `folder`. Paths are generalised: parts that differ between runs, such as
    process ids and temporary names, are replaced, and files below the case have one common name.
    """
    owners, lines = (
        _cases_of_processes(trace, folder),
        trace.read_text(errors="replace").splitlines(),
    )
    case_paths: dict[str, set[str]] = {}
    for pid, call, arguments in map(_parts, lines):
        case = owners.get(pid)
        if case is None:
            continue
        paths = case_paths.setdefault(case, set())
        if call == "connect" and "AF_INET" in arguments:
            paths.add("the network")
        if _TOUCHES.fullmatch(call):
            paths.update(_generalised(path, folder / case, root) for path in _paths(arguments))
    return case_paths


def run_traced(trace: Path, command: Sequence[str]) -> int:
    """Runs a command under strace, whose output goes to `trace`; returns the exit code."""
    return subprocess.run([*STRACE, "-o", str(trace), *command], check=False).returncode


def _parts(line: str) -> tuple[str, str, str]:
    match = _LINE.match(line)
    return match.group(1, 2, 3) if match else ("", "", "")


def _cases_of_processes(trace: Path, folder: Path) -> dict[str, str]:
    """Maps each process id to the case in whose folder the process, or its ancestor, works.

    The whole trace is read first, because a child's first calls may come before the call that
    created the child.
    """
    parents: dict[str, str] = {}
    owners: dict[str, str] = {}
    for pid, call, arguments in map(_parts, trace.read_text(errors="replace").splitlines()):
        if call in _MAKES and (match := re.search(r" = (\d+)$", arguments)):
            parents[match[1]] = pid
        if call == "chdir" and (path := re.match(r'"([^"]*)"', arguments)):
            place = Path(path[1])
            if place.parent == folder:
                owners.setdefault(pid, place.name)
    for pid in list(parents):
        ancestors, ancestor = [pid], pid
        while ancestor not in owners and ancestor in parents:
            ancestor = parents[ancestor]
            ancestors.append(ancestor)
        owners.update({p: owners[ancestor] for p in ancestors if ancestor in owners})
    return owners


def _paths(arguments: str) -> Iterator[str]:
    """Yields the paths in a system call's arguments, as strace prints them.

    A path relative to an open folder is joined to it. For a path /proc/self/fd/N, the path of the
    opened file is yielded.
    """
    opened = re.search(r" = \d+<([^>]*)>$", arguments)
    for folder, path in _PATH.findall(arguments):
        if opened and path.startswith("/proc/self/fd/"):
            path = opened[1]
        yield f"{folder}/{path}" if folder and not path.startswith("/") else path


def _generalised(path: str, case: Path, root: Path) -> str:
    path = path.replace(f"{case}/", "").removeprefix("./")
    if path in (str(case), "") or (not path.startswith(("/", "..")) and "/../" not in path):
        return "below the model"
    if path.startswith((*_MODULES, str(root))) and path.endswith((".py", ".pyc", ".so")):
        return "a module"
    path = re.sub(r"/proc/(self|thread-self|\d+)/", "/proc/N/", path)
    path = re.sub(r"^/tmp/[^/]*", "/tmp/T", path)
    path = re.sub(r"^/dev/shm/sem\..*", "/dev/shm/sem.S", path)
    return re.sub(r"/(T|__pycache__)/.*$", r"/\1/*", path)
