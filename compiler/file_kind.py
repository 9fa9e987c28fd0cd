"""The kind of a file by its first bytes, for errors about files of a wrong kind."""

from pathlib import Path

ELF, ZIP, ONNX, GGUF = b"\x7fELF", b"PK\3\4", b"\x08", b"GGUF"
# The offset of a format's magic bytes, the magic bytes, and the format's name.
_MARKS = (
    (0, ELF, "an ELF file, as artifacts of tcc compile are"),
    (0, b"!<arch>\n", "a static library, for a program to link"),
    (0, b"\x93NUMPY", "an array of NumPy"),
    (0, ZIP, "a zip archive, as .pt2 and .npz files are"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes"),
    (0, GGUF, "a GGUF file"),
    (0, b"\x80\x02", "a pickle"),
    (4, b"TFL3", "a model of TensorFlow Lite"),
    (0, b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (0, ONNX, "an ONNX model"),  # byte 8 begins its first field, the format's version
)


def file_kind(head: bytes) -> str:
    """Returns the kind of file that begins with `head`, as in "a gzip archive"; "" if unknown."""
    if not head:
        return "empty"
    for place, mark, kind in _MARKS:
        if head[place:].startswith(mark):
            return kind
    return "a text" if head.isascii() and head.decode().replace("\n", " ").isprintable() else ""


def is_elf(path: Path) -> bool:
    """True where `path` is an ELF file.  Pipes are not opened, because that could block forever."""
    return begins_with(path, ELF)


def begins_with(path: Path, mark: bytes) -> bool:
    """True where `path` is a file that begins with `mark`; pipes are not opened."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(mark)) == mark
    except (OSError, ValueError):
        return False
