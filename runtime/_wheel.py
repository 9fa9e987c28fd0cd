"""Build commands of the wheel (pyproject.toml, tool.setuptools.cmdclass).

The compiled runtime goes into the wheel beside its sources, so that the first compile on a machine
with the same C compiler need not build it; any other machine builds it from the sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

# Run on the files just copied: they are the package `tcc` of the wheel, whose one builder of the
# runtime needs the standard library only.
_BUILD = """
import sys
from pathlib import Path
from tcc.backends.toolchain import build_runtime, find_toolchain
build_runtime(find_toolchain(), Path(sys.argv[1]))
"""


class BuildRuntime(build_py):
    """Copies the package, then compiles the C library into its runtime/lib.

    An editable install gets no library: the runtime is built from its sources at first use.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        tree = Path(self.build_lib).resolve()
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _BUILD, str(tree / "tcc" / "runtime" / "lib")]
        subprocess.run(command, env=environment, cwd=tree, check=True)


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3: it holds machine code but no extension module."""

    def get_tag(self) -> tuple[str, str, str]:
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return "py3", "none", platform
