"""The script and the workflow that build wheels."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = """
tcc-0.1.0-py3-none-manylinux_2_17_x86_64.whl is consistent with the
following platform tag: "manylinux_2_17_x86_64".

This constrains the platform tag to "manylinux_2_17_x86_64". In order
to achieve a more compatible tag, you would need to recompile a new
"""


def script(name: str) -> Any:
    """Returns a script without a suffix as a module."""
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_report_of_auditwheel_names_a_glibc() -> None:
    wheel = script("wheel")
    assert wheel.needed_glibc(REPORT) == (2, 17) <= wheel.NEWEST
    wrapped = REPORT.replace('tag: "', 'tag:\n"').replace("2_17", "2_39")
    assert wheel.needed_glibc(wrapped) == (2, 39) > wheel.NEWEST
    with pytest.raises(ValueError, match="no manylinux tag"):
        wheel.needed_glibc("is consistent with the following platform tag: linux_x86_64")


def test_the_check_of_a_wheel_passes_here() -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / "wheel_check.py")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("compiles, runs and agrees with NumPy\n")


def test_the_workflow_builds_wheels_of_both_machines_for_old_systems() -> None:
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    job = flow["jobs"]["wheel"]
    machines = {row["machine"]: row["runner"] for row in job["strategy"]["matrix"]["include"]}
    assert machines == {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
    assert any("cibuildwheel --archs" in step.get("run", "") for step in job["steps"])
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    for machine in machines:
        assert settings[f"manylinux-{machine}-image"] in ("manylinux_2_28", "manylinux2014")
    program = settings["test-command"].split("{project}/")[1]
    assert (ROOT / program).is_file()


def test_no_extra_of_users_pins_a_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("gpu", "models", "io", "zig"):
        assert not [p for p in extras["optional-dependencies"][name] if "==" in p]
