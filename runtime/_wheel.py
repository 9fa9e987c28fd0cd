"""Build commands of the wheel (pyproject.toml, tool.setuptools.cmdclass).

The wheel ships the compiled runtime beside its sources. So the first compile on a machine with the
same C compiler need not build it. Any other machine builds it from the sources.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

# This runs on the files that were just copied: they are the wheel's package `tcc`. Its builder of
# the runtime needs only the standard library.
_BUILD = """
import sys
from pathlib import Path
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import build_runtime, find_toolchain
from tcc.errors import ToolError
try:
    build_runtime(find_toolchain(), Path(sys.argv[1]))
    build_comm_library(find_toolchain(), Path(sys.argv[1]))
except ToolError as error:
    print(f"the wheel holds no compiled runtime: {error}", file=sys.stderr)
"""


class BuildRuntime(build_py):
    """Copies the package, then compiles the C library and the arena planner into its runtime/lib.

    Without a C compiler, and in an editable install, nothing is compiled here: the first use builds
    the runtime from its sources.
    """

    def run(self) -> None:
        # An earlier build in the same folder may have left modules that no longer exist.
        shutil.rmtree(Path(self.build_lib, "tcc"), ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        tree = Path(self.build_lib).resolve()
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _BUILD, str(tree / "tcc" / "runtime" / "lib")]
        subprocess.run(command, env=environment, cwd=tree, check=True)


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3: it holds machine code but no extension module.

    On a system with glibc, the tag names the oldest glibc with which the wheel's libraries load.
    They are linked against runtime/glibc.txt.
    """

    def get_tag(self) -> tuple[str, str, str]:
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        if system in ("linux_x86_64", "linux_aarch64") and platform.libc_ver()[0] == "glibc":
            system = system.replace("linux", "manylinux_2_17")
        return "py3", "none", system


class DevelopmentTree(editable_wheel):
    """An editable install of build/devtree, which adds that folder to the module path.

    For the folder map of pyproject.toml, setuptools would add an import hook. Hooks come after the
    path. A folder `tcc` without modules, such as a clone beside a script, would be found first as a
    namespace package.
    """

    def finalize_options(self) -> None:
        subprocess.run([sys.executable, Path("scripts", "devtree")], check=True)
        self.distribution.package_dir = {"": "build/devtree"}
        super().finalize_options()
