"""Control groups that limit the memory of a test's processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class NoGroup(Exception):
    """The reason why no group can be created."""


def _own_folder(version: int) -> Path:
    """Returns the folder of this process's group in the hierarchy of that version."""
    groups = dict(
        (line.split(":", 2)[1], line.split(":", 2)[2])
        for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    group_path = next(
        (g for names, g in groups.items() if ("memory" in names.split(",")) == (version == 1)
         and (version == 1 or not names)), None,
    )  # fmt: skip
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        front, _, behind = line.partition(" - ")
        kind, options = behind.split()[0], behind.split()[-1].split(",")
        top, place = front.split()[3:5]
        if (kind, version) == ("cgroup2", 2) or (kind == "cgroup" and version == 1
                                                 and "memory" in options):  # fmt: skip
            below = (
                group_path.removeprefix(top) if group_path and group_path.startswith(top) else ""
            )
            return Path(place) / below.strip("/")
    raise NoGroup(f"no hierarchy of version {version} limits memory here")


@contextlib.contextmanager
def memory_group(version: int, name: str, limit: int) -> Iterator[Path]:
    """Creates a group inside this process's, limited to `limit` bytes without swap; raises
    NoGroup."""
    folder = _own_folder(version)
    if version == 2:
        enabled = folder / "cgroup.subtree_control"
        controllers = folder / "cgroup.controllers"
        if not controllers.exists() or "memory" not in controllers.read_text().split():
            raise NoGroup("groups of version 2 do not limit memory here")
        with contextlib.suppress(OSError):  # fails if processes are in it
            enabled.write_text("+memory")
    group = folder / name
    try:
        group.mkdir()
    except OSError as error:
        raise NoGroup(f"no group can be made in {folder}: {error.strerror}") from error
    try:
        file = group / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        try:
            file.write_text(str(limit))
        except OSError as error:
            raise NoGroup(f"{file} cannot be set: {error.strerror}") from error
        yield group
    finally:
        group.rmdir()
