"""Tests of the byte encoding of programs."""

from __future__ import annotations

import struct
from dataclasses import replace

import programs
import pytest
from tcc.backends.artifact.encode_program import GROUPS, encode_program
from tcc.errors import InternalError
from tcc.runtime.host_program import read_program

from tests.lib.oracle.program.decode import decode_program


def test_round_trip_of_every_instruction() -> None:
    program = programs.every_instruction()
    assert decode_program(encode_program(program)) == program


def test_equal_programs_give_equal_bytes() -> None:
    assert encode_program(programs.every_instruction()) == encode_program(
        programs.every_instruction()
    )


def test_numbers_beyond_64_bits_are_refused() -> None:
    program = replace(programs.every_instruction(), scratch=1 << 63)
    with pytest.raises(InternalError, match="64 bits"):
        encode_program(program)


def test_every_flipped_byte_and_every_cut_is_refused() -> None:
    data = encode_program(programs.mlp()[0])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        with pytest.raises(ValueError, match="the program"):
            read_program(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="the program"):
            read_program(data[:length])


def test_another_version_is_named() -> None:
    data = bytearray(encode_program(programs.mlp()[0]))
    struct.pack_into("<q", data, 8, GROUPS + 1)
    with pytest.raises(ValueError, match="another version"):
        read_program(bytes(data))
