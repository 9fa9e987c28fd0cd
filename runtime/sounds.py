"""Sounds as arrays, by soundfile."""

from __future__ import annotations

from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from tcc.runtime.arrays import Array
from tcc.runtime.elements import converted
from tcc.runtime.input_settings import SOUND_SETTINGS, Settings
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError, MissingLibraryError

_MOST_VALUES = 1 << 28  # 1 GiB of f32
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # written by programs that cannot seek in their output


def sound(stream: BinaryIO, port: ModulePort, settings: Settings, where: str) -> Array:
    """Returns samples of a sound as an array of the sizes and element type of `port`.

    The last axis has the samples and the axis before it, where it is not of size 1, the channels;
    other axes have size 1. The samples are `settings.window` ones from `settings.start`, else as
    many as the port takes, else all. Values from -1 to 1 become (v * scale - mean) / std.

    Raises InputError for a file that is no sound or is damaged, whose rate is not `settings.rate`,
    whose channels are not those of the port, or that has other than the port's number of samples.
    Raises MissingLibraryError without soundfile.
    """
    foreign = sorted(settings.names() - SOUND_SETTINGS)
    if foreign:
        raise InputError(f"{foreign[0]} is no setting of a sound", where=where)
    if not port.shape:
        raise InputError(f"the input {port.name!r} is one number, and no sound", where=where)
    soundfile = _soundfile(where)
    try:
        _check_length(stream)
        with soundfile.SoundFile(stream) as file:
            _check_rate(file.samplerate, settings, where)
            count = _window(file.frames, port, settings, where)
            if count * file.channels > _MOST_VALUES:
                raise InputError("the sound is too long", where=where,
                                 hint="read a part of it, as in window=16000")  # fmt: skip
            file.seek(settings.start)
            values = file.read(count, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, ValueError, OSError) as error:
        raise InputError(
            "the file is no sound, or is damaged", where=where, why=str(error)
        ) from error
    if len(values) != count:
        raise InputError("the sound is damaged", where=where,
                         why=f"{len(values)} of {count} samples can be read")  # fmt: skip
    values = _channels(values, port, settings, where)
    elements = np.ascontiguousarray(converted(values, port, settings, where).T)
    return elements.reshape(_shape(port, len(elements), count, where))


def _soundfile(where: str) -> Any:
    try:
        return import_module("soundfile")
    except (ImportError, OSError) as error:  # OSError where its C library is missing
        raise MissingLibraryError(
            "sounds are read by soundfile", where=where, why=str(error),
            hint="pip install 'tcc[io]', or give an array: NAME=@file.npy",
        ) from error  # fmt: skip


def _check_length(stream: BinaryIO) -> None:
    """Raises ValueError for a WAV file that is shorter than its header says.

    The library would read the part that is there.
    """
    head = stream.read(8)
    end = stream.seek(0, 2)
    stream.seek(0)
    size = int.from_bytes(head[4:], "little")
    if head[:4] == b"RIFF" and size not in _UNKNOWN_SIZES and size + 8 > end:
        raise ValueError(f"it is cut short: {end} of {size + 8} bytes are there")


def _check_rate(rate: int, settings: Settings, where: str) -> None:
    if settings.rate is None:
        raise InputError(
            "the model's rate is unknown",
            where=where,
            why=f"the file has {rate} samples per second, and a model names none",
            hint=f"say which rate the model was trained on, as in rate={rate}",
        )
    if settings.rate != rate:
        raise InputError(
            "the sound has another rate than the model",
            where=where,
            why=f"the file has {rate} samples per second, the model takes {settings.rate}",
            hint=f"convert it, as in: ffmpeg -i in.wav -ar {settings.rate} out.wav",
        )


def _window(frames: int, port: ModulePort, settings: Settings, where: str) -> int:
    """Returns the number of samples to read."""
    length = port.shape[-1]
    if settings.window is not None and length not in (None, settings.window):
        raise InputError(
            f"window={settings.window} is not the input's length",
            where=where,
            why=f"{port.name!r} has the shape {port.text}",
        )
    available = max(0, frames - settings.start)
    count = settings.window if settings.window is not None else length
    if count is None:
        count = available
    elif settings.window is None and available > count:
        raise InputError(
            f"the sound has {available} samples",
            where=where,
            why=f"{port.name!r} takes {count}",
            hint=f"name the part to read, as in start=0,window={count}",
        )
    if count > available or not count:
        raise InputError(
            "the sound is too short",
            where=where,
            why=f"it has {available} samples from sample {settings.start}, and {count} are read",
        )
    return count


def _channels(values: Array, port: ModulePort, settings: Settings, where: str) -> Array:
    """Returns the channels that the port takes, of values in samples and channels."""
    count = values.shape[1]
    if settings.channel is not None:
        if settings.channel >= count:
            raise InputError(f"there is no channel {settings.channel}", where=where,
                             why=f"the sound has {count}, counted from 0")  # fmt: skip
        return values[:, settings.channel : settings.channel + 1]
    expected = port.shape[-2] if len(port.shape) > 1 else 1
    if expected is None:
        expected = 1  # a batch or the channels: a sound with one channel is both
    if count != expected:
        raise InputError(
            f"the sound has {count} channels",
            where=where,
            why=f"{port.name!r} with the shape {port.text} takes {expected}",
            hint="name one, as in channel=0",
        )
    return values


def _shape(port: ModulePort, channels: int, samples: int, where: str) -> tuple[int, ...]:
    outer = port.shape[:-1]
    if any(size not in (None, 1) for size in outer[:-1]) or outer[-1:] not in (
        (), (None,), (channels,),
    ):  # fmt: skip
        raise InputError(
            "the input takes more than a sound",
            where=where,
            why=f"{port.name!r} has the shape {port.text}",
            hint="give a file for each, as in NAME=@a.wav,@b.wav, or an array",
        )
    axes = (1,) * (len(outer) - 1) + (channels,) if outer else ()
    return (*axes, samples)
