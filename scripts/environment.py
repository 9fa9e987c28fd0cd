"""The virtual environment `.venv` in which the other scripts run; needs only the standard
library."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def ensure(*extras: str) -> Path:
    """Returns the Python of `.venv`, which has tcc (editable) and these extras.

    `.venv` is created if needed, and updated if pyproject.toml or the Python version changed. If
    the package registry cannot be reached, `.venv` uses the packages of the Python that runs this
    script.
    """
    stamp = VENV / "stamp"
    key = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    stamp_words = stamp.read_text().split() if stamp.is_file() and PYTHON.is_file() else []
    all_extras = sorted({*stamp_words[1:], *extras})
    if stamp_words != [key, *all_extras]:
        _install(all_extras)
        stamp.write_text(" ".join((key, *all_extras)))
    show(PYTHON, ROOT / "scripts" / "devtree", quiet=True)
    return PYTHON


def enter(*extras: str) -> None:
    """Restarts the running script inside `.venv` unless it runs there; puts `models` on the
    path."""
    if Path(sys.prefix) != VENV:
        ensure(*extras)
        os.execve(PYTHON, [str(PYTHON), *sys.argv], environment())
    sys.path.append(str(ROOT))


def environment() -> dict[str, str]:
    """Returns this process's environment variables for a child that runs in `.venv`.

    Tools that read files (import-linter) need the development tree, because they cannot see the
    packages of an editable install. Bytecode is written even if PYTHONDONTWRITEBYTECODE forbids it:
    otherwise each of the many processes would compile the modules that it imports.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT / "build" / "devtree"),
        "ORT_DISABLE_TELEMETRY": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "inductor"),
    }


def show(*command: str | Path, quiet: bool = False) -> int:
    """Prints a command, runs it in the root with `.venv` first in PATH, and returns its exit
    code."""
    texts = [str(part) for part in command]
    if not quiet:
        root = f"{ROOT}{os.sep}"
        print("$", " ".join(text.replace(root, "") for text in texts), flush=True)
    return subprocess.run(texts, cwd=ROOT, env=environment(), check=False).returncode


def _install(extras: list[str]) -> None:
    print(f"setting up .venv with tcc[{','.join(extras)}]", flush=True)
    config = VENV / "pyvenv.cfg"
    version = ".".join(map(str, sys.version_info[:3]))
    if not PYTHON.exists() or f"version = {version}" not in config.read_text().splitlines():
        venv.create(VENV, with_pip=True, clear=True)
    pip = (PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    package = ("-e", f".[{','.join(extras)}]")
    if show(*pip, "uv", quiet=True) == 0 and show(*_uv(), *package, quiet=True) == 0:
        return
    print("uv cannot be used; trying pip, which takes minutes", flush=True)
    if show(*pip, *package, quiet=True) == 0:
        return
    print("the registry cannot be used; trying this Python's own packages instead", flush=True)
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    target = VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (target / "libraries.pth").write_text("\n".join(sorted(paths)))
    if show(*pip, "--no-deps", "--no-build-isolation", "-e", ".", quiet=True) != 0:
        sys.exit("cannot set up .venv: no registry, and this Python lacks setuptools")


def _uv() -> list[str | Path]:
    """Returns the command `uv pip install` with the indexes and links that pip is configured with.

    uv takes a sixth of pip's time. With the option below, it takes the best version that any index
    has, as pip does.
    """
    listed = (str(PYTHON), "-m", "pip", "config", "list")
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = sorted(line.split("=", 1) for line in lines if "=" in line)
    # `:env:` sorts before the sections of files and has precedence.
    settings = {key.rpartition(".")[2]: value.strip("'\"") for key, value in reversed(pairs)}
    command: list[str | Path] = [VENV / "bin" / "uv", "pip", "install", "-q", "--python", PYTHON]
    command += ["--index-strategy", "unsafe-best-match"]
    for key in ("index-url", "extra-index-url", "find-links"):
        for place in settings.get(key, "").split():
            command += [f"--{key}", place]
    return command
