"""The environment of compilers: variables that say where files are, but do not change the
output."""

import os

_NAMES = (
    "PATH HOME TMPDIR LD_LIBRARY_PATH PYTHONHOME PYTHONPATH XDG_CACHE_HOME ZIG_GLOBAL_CACHE_DIR "
    "ZIG_LOCAL_CACHE_DIR"
)
_FIXED = "LC_ALL=C SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 TRITON_DISABLE_LINE_INFO=1"


def compiler_environment() -> dict[str, str]:
    """Returns the variables for LLVM, Triton, compilers and linkers.

    These programs read many variables. Only the few returned here reach them, so that equal inputs
    give equal bytes.
    """
    variables = {name: os.environ[name] for name in _NAMES.split() if name in os.environ}
    return variables | dict(entry.split("=") for entry in _FIXED.split())
