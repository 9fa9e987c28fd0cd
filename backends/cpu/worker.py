"""The worker process that compiles LLVM IR to object code."""

from tcc.backends.cpu.codegen import compile_assembly, compile_object
from tcc.backends.workers import serve
from tcc.target import Target


def main() -> None:
    """Answers requests `(text, target, listed)` with the object file.

    If `listed`, the answer is the assembly in UTF-8.
    """
    serve(_compiled)


def _compiled(request: tuple[str, Target, bool]) -> tuple[bytes, str]:
    text, target, listed = request
    try:
        code = compile_assembly(text, target).encode() if listed else compile_object(text, target)
    except RuntimeError as error:
        return b"", str(error)
    return code, ""
