"""The process that turns LLVM IR into object code, away from the user's process."""

from tcc.backends.cpu.codegen import compile_assembly, compile_object
from tcc.backends.workers import serve
from tcc.target import Target


def main() -> None:
    """Answers requests `(text, target, listed)` by the object; `listed` asks for assembly, UTF-8,
    instead."""
    serve(_compiled)


def _compiled(request: tuple[str, Target, bool]) -> tuple[bytes, str]:
    text, target, listed = request
    try:
        code = compile_assembly(text, target).encode() if listed else compile_object(text, target)
    except RuntimeError as error:
        return b"", str(error)
    return code, ""
