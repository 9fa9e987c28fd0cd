"""Links an artifact as an object file or a static library.

A program links an object file or a static library into its own file. All their symbols but the
model's `NAME_api` are local, so that a program can link several models. Weights are a read-only
section of the object, up to a limit; larger weights are in a side file, which the program looks for
in the folder of its own file.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tcc.backends.artifact.header import c_text
from tcc.backends.artifact.toolchain import Toolchain, run_tool
from tcc.errors import ToolError
from tcc.runtime.sections import SIDE_SUFFIX

# The libraries that a program needs beside a model that it links.
LIBRARIES = "-lm -lpthread -ldl"
# The name is one of large data, which linkers put behind the code, because code reaches 2 GiB.
_WEIGHTS_SECTION = ".lrodata.tcc"


# C text that makes the file `weights` a section, at a multiple of a page.
_SECTION = f"""
__asm__(".pushsection {_WEIGHTS_SECTION},\\"a\\"\\n"
        ".balign 4096\\n"
        "tcc_section_begin: .incbin \\"weights\\"\\n"
        ".popsection\\n");
HIDDEN const char tcc_section_begin[];
#define TCC_SECTION tcc_section_begin
"""


def section_header(side_name: str, embedded: bool) -> str:
    """Returns C text that defines the place of an object's weights.

    If they are not `embedded` in a section, a side file of this name has them.
    """
    define = f'#define TCC_SIDE_NAME "{c_text(side_name)}"\n'
    return define + (_SECTION if embedded else "#define TCC_SECTION 0\n")


def link_object(
    toolchain: Toolchain, folder: Path, inputs: Sequence[str], name: str, emit: str
) -> None:
    """Links the object files `inputs` of `folder` into model.o, or into the archive model.a.

    Its only global definition is `name`_api. Raises ToolError if a tool is missing or fails.
    """
    objects = [path for path in inputs if path.endswith(".o")]  # and no library
    run_tool((*toolchain.command, "-r", "-nostdlib", *objects, "-o", "linked"), folder)
    objcopy = _tool(toolchain, "objcopy", folder)
    run_tool((objcopy, f"--keep-global-symbol={name}_api", "linked", "model.o"), folder)
    if emit == "static":
        run_tool((_tool(toolchain, "ar", folder), "rcsD", "model.a", "model.o"), folder)


def _tool(toolchain: Toolchain, name: str, folder: Path) -> str:
    """Returns the path of a tool of the compiler; raises ToolError if it is missing."""
    path = run_tool((*toolchain.command, f"-print-prog-name={name}"), folder).strip()
    tool = shutil.which(path)
    if tool is None:
        what = f"{name} was not found, and --emit object and --emit static need it"
        raise ToolError(what, hint="install binutils")
    return tool


def side_path(out: Path) -> Path:
    """Returns the place of the side file with the weights of the file `out`."""
    return out.with_name(out.name + SIDE_SUFFIX)
