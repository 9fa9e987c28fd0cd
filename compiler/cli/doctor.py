"""`tcc doctor`."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import click
from tcc import __version__
from tcc.backends.cpu.detect import detect
from tcc.cli.choices import OUTPUT, json_flag, switch
from tcc.cli.later_modules import calibrate as measuring
from tcc.cli.later_modules import machine_file, shipped_machines
from tcc.cli.progress import progress
from tcc.cli.show import print_json, say, say_all, write_text
from tcc.errors import ToolError, UserError
from tcc.options import Options
from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text
from tcc.target import Target, parse_targets

_PACKAGES = (
    "numpy onnx networkx llvmlite click rich apache-tvm-ffi ziglang triton torch onnxruntime"
).split()
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@click.command()
@switch(
    "--calibrate",
    "Measures this machine's constants (some seconds) for tcc compile --machine.",
)
@click.option(
    "-o", "--output", type=OUTPUT, metavar="FILE", help="Where they go; default: printed."
)
@json_flag
def doctor(calibrate: bool, output: Path | None, as_json: bool) -> int:
    """Shows what tcc finds on this machine: versions, linkers, processor, memory pages.

    \b
    Example:
      tcc doctor
      tcc doctor --calibrate -o machine.json

    The exit code is 3 if nothing here can link an artifact.
    """
    if calibrate:
        _calibrate(output, as_json)
        return 0
    if output is not None:
        raise UserError("there is nothing to write without --calibrate", where=f"-o {output}")
    linkers = _linkers()
    facts = {
        "tcc": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **{name: _package(name) for name in _PACKAGES},
        **linkers,
        **_processor(),
        "cpus": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "huge pages": _huge_pages(),
    }
    if as_json:
        print_json(facts)
    else:
        say_all([Table([*facts.items()], has_heads=False)])
    if all(state == "absent" for state in linkers.values()):
        say("nothing can link here: install gcc or clang, or: pip install 'tcc[zig]'", err=True)
        return ToolError.exit_code
    return 0


def _calibrate(output: Path | None, as_json: bool) -> None:
    with progress("measuring this machine"):
        machine = measuring.calibrate(_target())
    text = machine_file.machine_text(machine)
    if output is not None:
        write_text(output, "the file of constants", text)
    if as_json or output is None:
        click.echo(text, nl=False)
    else:
        memory = machine.memory
        click.echo(
            f"{output}: {machine.name}, {machine.cores} cores, {machine.peak / 1e9:.0f} Gflop/s, "
            f"memory {memory.read_all / 1e9:.1f} GB/s, launch {machine.launch * 1e9:.0f} ns, "
            f"fork and join {machine.fork * 1e9:.0f} ns"
        )


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _linkers() -> dict[str, str]:
    """Returns the programs that can link an artifact by name, each with its version or "absent"."""
    cc = shutil.which("cc")
    return {
        "cc": "absent" if cc is None else _first_line([cc, "--version"]),
        "zig": "absent" if find_spec("ziglang") is None else "ziglang package",
    }


def _first_line(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"fails: {error}"
    return next(iter(result.stdout.splitlines()), f"fails with exit code {result.returncode}")


def _processor() -> dict[str, str]:
    try:
        target = _target()
    except UserError as error:
        return {"processor": f"not supported: {error.what}"}
    profile = target.profile
    machine = shipped_machines.machine_path(shipped_machines.machine_for(profile).name)
    caches = (bytes_text(size) for size in (profile.l1, profile.l2, profile.l3))
    return {
        "processor": f"{target.text}, {profile.vector_bits}-bit vectors",
        "features": " ".join(profile.features),
        "caches": ", ".join(caches),
        "machine": str(machine.relative_to(Path(__file__).parents[2])),
    }


def _target() -> Target:
    """Returns the target that `tcc compile` compiles for by default."""
    options = Options()
    return parse_targets(options.target, options.cpu, detect)[0]


def _huge_pages() -> str:
    """Returns Linux's setting of transparent huge pages: `always`, `madvise`, `never` or `unknown`.

    The runtime gets huge pages with `always` and `madvise` only.
    """
    try:
        text = _HUGE_PAGES.read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"
