"""The environment of compilers: with what decides where they find things, not what they make."""

import os

_KEPT = (
    "PATH HOME TMPDIR LD_LIBRARY_PATH PYTHONHOME PYTHONPATH XDG_CACHE_HOME ZIG_GLOBAL_CACHE_DIR "
    "ZIG_LOCAL_CACHE_DIR"
)
_FIXED = "LC_ALL=C SOURCE_DATE_EPOCH=0 PYTHONHASHSEED=0 TRITON_DISABLE_LINE_INFO=1"


def compiler_environment() -> dict[str, str]:
    """Equal inputs give equal bytes: LLVM, Triton, compilers and linkers read scores of variables,
    of which none but these few reach them."""
    kept = {name: os.environ[name] for name in _KEPT.split() if name in os.environ}
    return kept | dict(each.split("=") for each in _FIXED.split())
