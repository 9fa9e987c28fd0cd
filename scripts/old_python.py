"""Python 3.11 in a root of Debian 11, and tcc's wheel in it.

Debian 11 has Python 3.9, and tcc needs 3.11. No package of PyPI or npm with an interpreter for
Debian 11's C library was found: packages that are called so download it from elsewhere. So the
sources of Debian 12's package are built in the root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from debian_root import run

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "/opt/python/bin/python3"
_KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = f"deb-src [signed-by={_KEY}] http://deb.debian.org/debian bookworm main\n"
_NEWEST = 31  # the root has glibc 2.31


def add_python(root: Path) -> str:
    """Builds Python 3.11 in the root unless it is there; returns "" or what failed."""
    if (root / PYTHON[1:]).exists():
        return ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lists" / "partial").mkdir(parents=True)
        (folder / "sources.list").write_text(_SOURCES)
        folder.chmod(0o755)
        settings = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        for words in (("update",), ("source", "--download-only", "python3.11")):
            process = subprocess.run(
                ("apt-get", *options, *words),
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                return process.stderr[-2000:]
        source = root / "python-source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        [archive] = folder.glob("*.orig.tar.*")
        subprocess.run(("tar", "-xf", archive, "-C", source, "--strip-components=1"), check=True)
    result = run(
        root,
        "cd /python-source; ./configure --prefix=/opt/python >log 2>&1;"
        f" make -j{os.cpu_count()} >>log 2>&1; make install >>log 2>&1",
    )
    return (source / "log").read_text()[-2000:] if result.returncode else ""


def wheel_outcome(root: Path) -> str:
    """Returns "ok", or what went wrong as tcc's wheel was installed and compiled a model."""
    if failure := add_python(root):
        return f"no Python: {failure}"
    place = root / "wheels"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(5, _NEWEST + 1)]
    tags += [f"manylinux{year}_x86_64" for year in (1, 2010, 2014)]
    platforms = [f"--platform={tag}" for tag in tags]
    build = (sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", place, ROOT)
    download = (
        *(sys.executable, "-m", "pip", "download", "-qq", "--dest", place, "--python-version=3.11"),
        *("--only-binary=:all:", *platforms),
    )
    for command in (build, download):
        wheels = [*place.glob("tcc-*.whl")]
        process = subprocess.run(
            (*command, *wheels), cwd=place, capture_output=True, text=True, check=False
        )
        if process.returncode:
            return f"no wheels: {process.stderr[-2000:]}"
    shutil.copy(ROOT / "scripts" / "wheel_check.py", place)
    result = run(
        root,
        f"rm -rf /venv; {PYTHON} -m venv /venv; cd /;"
        " /venv/bin/pip install -q --no-index --find-links /wheels tcc;"
        " /venv/bin/python /wheels/wheel_check.py",
    )
    return "ok" if not result.returncode else f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
