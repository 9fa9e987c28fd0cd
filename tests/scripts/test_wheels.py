"""The script and the workflow that build wheels."""

from __future__ import annotations

import shutil
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


HOME = "https://git.example/someone/tcc"


def published_tree(folder: Path) -> Path:
    """Returns `folder` with the two files that get addresses and the files that they link to."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "docs").mkdir()
    for name in ("GUIDE.md", "chart.svg"):
        (folder / name).touch()
    text = "[guide](GUIDE.md#start) ![chart](chart.svg) [pages](docs) [site](https://x.example/a)"
    (folder / "README.md").write_text(text)
    return folder


def test_a_package_page_gets_the_addresses_of_the_project(tmp_path: Path) -> None:
    root = published_tree(tmp_path)
    before = tomllib.loads((root / "pyproject.toml").read_text())
    script("package_page").write_addresses(root, HOME + ".git", "v1.0")
    after = tomllib.loads((root / "pyproject.toml").read_text())
    addresses = after["project"].pop("urls")
    assert after == before
    assert addresses["Homepage"] == HOME
    assert addresses["Documentation"] == f"{HOME}/blob/v1.0/GUIDE.md"
    assert addresses["Issues"] == f"{HOME}/issues"
    assert (root / "README.md").read_text() == (
        f"[guide]({HOME}/blob/v1.0/GUIDE.md#start) ![chart]({HOME}/raw/v1.0/chart.svg) "
        f"[pages]({HOME}/tree/v1.0/docs) [site](https://x.example/a)"
    )


@pytest.mark.parametrize(
    ("home", "revision", "message"),
    [
        ("http://git.example/someone/tcc", "v1", "is no address like"),
        (HOME + '"\nx = "1', "v1", "is no address like"),
        (HOME, 'v1" onerror="', "is no name of a tag"),
    ],
)
def test_a_wrong_address_changes_no_file(
    tmp_path: Path, home: str, revision: str, message: str
) -> None:
    root = published_tree(tmp_path)
    before = [(root / name).read_bytes() for name in ("pyproject.toml", "README.md")]
    with pytest.raises(ValueError, match=message):
        script("package_page").write_addresses(root, home, revision)
    assert [(root / name).read_bytes() for name in ("pyproject.toml", "README.md")] == before


def test_a_second_home_and_a_broken_link_are_refused(tmp_path: Path) -> None:
    page = script("package_page")
    root = published_tree(tmp_path)
    (root / "chart.svg").unlink()
    with pytest.raises(ValueError, match=r"links to chart\.svg, which does not exist"):
        page.write_addresses(root, HOME, "v1")
    (root / "chart.svg").touch()
    page.write_addresses(root, HOME, "v1")
    with pytest.raises(ValueError, match="already has the table"):
        page.write_addresses(root, HOME, "v1")


def test_every_link_of_the_readme_becomes_absolute() -> None:
    page = script("package_page")
    text = page.absolute_links((ROOT / "README.md").read_text(), ROOT, HOME, "v1")
    targets = [link["target"] for link in page.LINK.finditer(text)]
    assert len(targets) > 10
    assert all(target.startswith("https://") for target in targets)


def test_the_workflow_writes_addresses_before_it_builds() -> None:
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    commands = [step.get("run", "") for step in flow["jobs"]["wheel"]["steps"]]
    places = [
        next(place for place, command in enumerate(commands) if word in command)
        for word in ("scripts/package_page", "cibuildwheel --archs")
    ]
    assert places == sorted(places)
    assert '"$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"' in commands[places[0]]


def test_no_extra_of_users_pins_a_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("gpu", "models", "io", "zig"):
        assert not [p for p in extras["optional-dependencies"][name] if "==" in p]
