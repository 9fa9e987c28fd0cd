"""The process that turns LLVM IR into object code, away from the user's process.

It reads requests from its standard input and answers on its standard output; both are pickled
tuples behind their length.  A fatal error of LLVM ends this process and no other.
"""

from __future__ import annotations

import pickle
import struct
import sys
from typing import Any, BinaryIO

from tcc.backends.cpu.codegen import compile_assembly, compile_object
from tcc.target import Target

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; raises EOFError where the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has ended")
    size = _LENGTH.unpack(head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other process ended inside a message")
    return pickle.loads(data)


def _assembly(text: str, target: Target) -> bytes:
    return compile_assembly(text, target).encode()


def serve() -> None:
    """Answers requests `(text, target, listed)` by `(object, "")` or `(b"", error)` until the end.

    `listed` asks for assembly, UTF-8, instead of an object.
    """
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            text, target, listed = receive(source)
        except EOFError:
            return
        try:
            make = _assembly if listed else compile_object
            answer = make(text, target), ""
        except RuntimeError as error:
            answer = b"", str(error)
        send(sink, answer)
