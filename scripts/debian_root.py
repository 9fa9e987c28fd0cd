"""A root with the packages of an old Debian, in which other scripts build and run programs."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "bullseye"  # Debian 11, glibc 2.31
PACKAGES = "gcc,g++,libc6-dev,make,cmake,pkg-config,cargo,zlib1g-dev,libffi-dev"
FOLDER = ROOT / "build" / "old_root"


def debian_root(again: bool = False) -> Path:
    """Returns the root, which is made if it is missing or if `again` says so.

    Ends the script with exit code 3 where the root cannot be made.
    """
    root = FOLDER / RELEASE
    if again or not root.is_dir():
        make_root(root)
    return root


def cannot_make() -> str:
    """Returns why this process can neither make nor enter a root, or ""."""
    if os.geteuid():
        return "a root needs root's rights"
    if shutil.which("debootstrap") is None:
        return "a root needs debootstrap (on Debian: apt-get install debootstrap)"
    return ""


def make_root(root: Path) -> None:
    """Makes the root, completely or not at all; ends the script where that is not possible."""
    if reason := cannot_make():
        print(reason, file=sys.stderr)
        sys.exit(3)
    shutil.rmtree(root, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="making-", dir=FOLDER))
    print(f"making a root of Debian's {RELEASE} ...", flush=True)
    options = ("--variant=minbase", f"--include={PACKAGES}")
    process = subprocess.run(
        ("debootstrap", *options, RELEASE, new), capture_output=True, text=True, check=False
    )
    if process.returncode:
        print(process.stdout[-2000:] + process.stderr[-2000:], file=sys.stderr)
        shutil.rmtree(new)
        sys.exit(3)
    new.chmod(0o755)
    new.rename(root)


def run(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell's command in the root, with a /proc of its own."""
    words = ("unshare", "--mount", "--pid", "--fork", f"--root={root}", "--mount-proc", "/bin/sh")
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    return subprocess.run(
        (*words, "-ec", command), env=variables, capture_output=True, text=True, check=False
    )
