"""The hashes that prove a secret agree with the vectors of their standards and with Python's."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from library import WATCHED, build_whole, run

# FIPS 180-4's examples (NIST, SHA256.pdf), including a million letters
HASHES = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq":
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    b"a" * 1_000_000: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
}  # fmt: skip
# RFC 4231, cases 1 to 4, 6 and 7 (case 5 truncates the hash): key, data, HMAC-SHA-256
PROOFS = (
    (b"\x0b" * 20, b"Hi There",
     "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (b"Jefe", b"what do ya want for nothing?",
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
    (b"\xaa" * 20, b"\xdd" * 50,
     "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (bytes(range(1, 26)), b"\xcd" * 50,
     "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
    (b"\xaa" * 131, b"Test Using Larger Than Block-Size Key - Hash Key First",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
    (b"\xaa" * 131, b"This is a test using a larger than block-size key and a larger than "
     b"block-size data. The key needs to be hashed before being used by the HMAC algorithm.",
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"),
)  # fmt: skip


@pytest.fixture(scope="module")
def program(
    objects_of: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    objects = objects_of(*WATCHED, only=("proof", "sha256", "status"))
    return build_whole(tmp_path_factory.mktemp("proofs"), "proofs", objects, *WATCHED)


def hashes(program: Path, text: bytes, key: bytes, piece: int) -> list[str]:
    """Returns the SHA-256 of a text, and its HMAC with a key."""
    files = program.with_name("text"), program.with_name("key")
    files[0].write_bytes(text)
    files[1].write_bytes(key)
    return run(program, *files, str(piece)).split()


@pytest.mark.parametrize("text", HASHES, ids=range(len(HASHES)))
def test_vectors_of_sha_256(program: Path, text: bytes) -> None:
    assert hashes(program, text, b"", 4096)[0] == HASHES[text]


@pytest.mark.parametrize(("key", "text", "expected"), PROOFS, ids=range(len(PROOFS)))
def test_vectors_of_hmac_sha_256(program: Path, key: bytes, text: bytes, expected: str) -> None:
    assert hashes(program, text, key, 4096)[1] == expected


def test_lengths_around_blocks_in_pieces(program: Path) -> None:
    draw = random.Random(49)
    for length in (1, 55, 56, 63, 64, 65, 119, 120, 128, *draw.choices(range(1000), k=10)):
        text, key = draw.randbytes(length), draw.randbytes(draw.choice((1, 63, 64, 65)))
        expected = [hashlib.sha256(text).hexdigest(), hmac.digest(key, text, "sha256").hex()]
        assert hashes(program, text, key, draw.choice((1, 7, 64, 100))) == expected


def test_fresh_numbers_differ(program: Path) -> None:
    numbers = {number for _ in range(3) for number in run(program).split()}
    assert len(numbers) == 6
    assert all(len(set(number)) > 4 for number in numbers)
