"""Writes tables of 64-bit words and strings, which the runtime reads."""

import struct
import zlib

from tcc.errors import InternalError


class WordWriter:
    """Appends 64-bit words and strings; equal strings are stored once."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.strings = bytearray()
        self._offsets: dict[str, tuple[int, int]] = {}

    def put(self, *words: int) -> None:
        self.words.extend(words)

    def string(self, text: str) -> None:
        if text not in self._offsets:
            data = text.encode()
            self._offsets[text] = (len(self.strings), len(data))
            self.strings += data + b"\0"
        self.put(*self._offsets[text])

    def table(self, magic: int, version: int, alignment: int, *extra_words: int) -> bytes:
        """Returns a header, the words and the strings, padded to a multiple of `alignment` bytes.

        The header has these words: `magic`, `version`, the number of words including the header,
        the number of bytes of the strings, a checksum of words and strings, and `extra_words`.
        Raises InternalError if a number does not fit in 64 bits.
        """
        words = 5 + len(extra_words) + len(self.words)
        strings = bytes(self.strings) + bytes(-(8 * words + len(self.strings)) % alignment)
        try:
            body = struct.pack(f"<{len(self.words)}q", *self.words) + strings
        except struct.error as error:
            raise InternalError("a table has a number beyond 64 bits", where="encode") from error
        head = (magic, version, words, len(strings), zlib.crc32(body), *extra_words)
        return struct.pack(f"<{len(head)}q", *head) + body
