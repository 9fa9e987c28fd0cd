"""Compiles a model, verifies it, and compares the artifact with the base's.

The variables MODEL, OPTIONS and GATE are the action's inputs. The artifact goes to build/tcc-new,
the base's is looked for in build/tcc-base, and the report goes to build/tcc-report.md and to the
job's summary. The exit code is the largest one of the commands.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TCC = (sys.executable, "-P", "-m", "tcc")
NEW, BASE, REPORT = (Path("build", name) for name in ("tcc-new", "tcc-base", "tcc-report.md"))


def run(*words: str | Path) -> tuple[int, str]:
    """Runs a command of tcc; returns its exit code and what it printed."""
    done = subprocess.run(
        [*TCC, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    return done.returncode, done.stdout


def fenced(text: str) -> str:
    """Returns a text as a block of code, whose fence the text cannot close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}\n"


def check(model: Path, options: Sequence[str], gate: str) -> tuple[int, str]:
    """Returns the exit code and the report, in Markdown."""
    artifact, base = NEW / f"{model.stem}.so", BASE / f"{model.stem}.so"
    shutil.rmtree(NEW, ignore_errors=True)
    NEW.mkdir(parents=True)
    code, text = run("compile", model, "-o", artifact, *options)
    report = f"**Compile**: {verdict(code)}\n\n{fenced(text)}"
    if code:
        return code, report
    verify_code, text = run("verify", model, artifact)
    report += f"\n**Verify**: {verdict(verify_code)}\n\n{fenced(text)}"
    if not base.exists():
        return verify_code, f"{report}\n**Bench**: no base is stored yet\n"
    gate_code, text = run("bench", artifact, "--compare", base, "--gate", gate, "--markdown")
    return max(verify_code, gate_code), f"{report}\n**Bench**: {verdict(gate_code)}\n\n{text}"


def verdict(code: int) -> str:
    return "passed" if code == 0 else f"failed with exit code {code}"


def main() -> int:
    """Returns the exit code."""
    model, gate = Path(os.environ["MODEL"]), os.environ["GATE"]
    options = shlex.split(os.environ["OPTIONS"])
    code, report = check(model, options, gate)
    identity = hashlib.sha256(repr((str(model), options)).encode()).hexdigest()[:16]
    text = f"<!-- tcc {identity} -->\n{fenced(f'tcc: {model}')}\n{report}"
    REPORT.write_text(text, encoding="utf-8")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
