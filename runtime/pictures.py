"""Pictures as arrays, by Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from tcc.runtime.arrays import Array
from tcc.runtime.elements import converted
from tcc.runtime.input_settings import PICTURE_SETTINGS, Settings
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError, MissingLibraryError

# Formats that Pillow decodes itself. Others, such as EPS, start programs or need libraries.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 1 << 26  # a decoded picture then takes 256 MiB
_CHANNELS = {"rgb": 3, "bgr": 3, "rgba": 4, "grey": 1}
_MODES = {"rgb": "RGB", "bgr": "RGB", "rgba": "RGBA", "grey": "L"}
_ORDERS = {1: "grey", 3: "rgb", 4: "rgba"}
_Size = tuple[int, int]  # height and width in pixels


def picture(stream: BinaryIO, port: ModulePort, settings: Settings, where: str) -> Array:
    """Returns a picture as an array of the sizes, layout and element type of `port`.

    The first frame of the file is upright (EXIF), as wide and high as the port demands; sizes that
    the port leaves open are those of `settings.resize`, else the picture's. Channels are those of
    the port: a grey picture has three equal ones, and an alpha channel is dropped unless the port
    has four. Values from 0 to 255 become (v * scale - mean) / std; integers are rounded. A batch
    axis has size 1. For floats that NumPy lacks the result is f32.

    Raises InputError for a file that is no picture, or is damaged or too large, and for settings
    that do not fit the port. Raises MissingLibraryError without Pillow.
    """
    foreign = sorted(settings.names() - PICTURE_SETTINGS)
    if foreign:
        raise InputError(f"{foreign[0]} is no setting of a picture", where=where)
    layout = _layout(port, settings, where)
    order = _order(port, layout, settings, where)
    target = _target(port, layout, settings, where)
    image = _upright(stream, where)
    image = _framed(_in_mode(image, _MODES[order], where), target, settings, where)
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if order == "bgr":
        pixels = pixels[:, :, ::-1]
    return _laid_out(converted(pixels, port, settings, where), layout)


# ---- the port: layout, channels and size ---------------------------------------------------------


def _layout(port: ModulePort, settings: Settings, where: str) -> str:
    """Returns the order of the port's axes, such as `nchw`, from its sizes where none is set."""
    if settings.layout:
        if len(settings.layout) != len(port.shape):
            raise InputError(
                f"the layout {settings.layout} has {len(settings.layout)} axes",
                where=where,
                why=f"the input {port.name!r} has {len(port.shape)}",
            )
        return settings.layout
    fitting = [
        layout
        for layout in ("nchw", "nhwc", "chw", "hwc", "hw")
        if len(layout) == len(port.shape)
        and ("c" not in layout or port.shape[layout.index("c")] in _ORDERS)
    ]
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        f"the shape {port.text} does not tell the axis of the channels",
        where=where,
        hint="name the axes, as in layout=nchw, nhwc, chw, hwc, nhw or hw",
    )


def _order(port: ModulePort, layout: str, settings: Settings, where: str) -> str:
    count = port.shape[layout.index("c")] if "c" in layout else 1
    order = settings.order or _ORDERS.get(3 if count is None else count, "")
    if order and count in (None, _CHANNELS[order]):
        return order
    raise InputError(
        f"the input {port.name!r} takes {count} channels",
        where=where,
        why=f"{order} has {_CHANNELS[order]}" if order else "a picture has 1, 3 or 4",
        hint="give rgb, bgr, rgba or grey, or a layout whose axis c has the channels",
    )


def _target(
    port: ModulePort, layout: str, settings: Settings, where: str
) -> tuple[int | None, int | None]:
    """Returns the height and the width of the array; None where the picture decides."""
    sizes = [port.shape[layout.index(axis)] for axis in "hw"]
    batch = port.shape[layout.index("n")] if "n" in layout else 1
    if batch not in (None, 1):
        raise InputError(
            f"the input {port.name!r} takes {batch} pictures at once",
            where=where,
            hint="give so many files, as in NAME=@a.png,@b.png",
        )
    resize = settings.resize
    if len(resize) == 2:
        if any(size not in (None, n) for size, n in zip(sizes, resize, strict=True)):
            raise InputError(
                f"resize={resize[0]}x{resize[1]} is not the input's size",
                where=where,
                why=f"{port.name!r} has the shape {port.text}, in the layout {layout}",
                hint="leave it out: the input's size is taken",
            )
        return resize[0], resize[1]
    if len(resize) == 1 and not settings.crop and sizes != [None, None]:
        raise InputError(
            f"resize={resize[0]} leaves the longer edge open",
            where=where,
            why=f"{port.name!r} has the shape {port.text}, in the layout {layout}",
            hint="add crop, or leave it out: the input's size is taken",
        )
    needs_sizes = settings.letterbox is not None or settings.crop
    if needs_sizes and None in sizes:
        raise InputError(
            "the model leaves the size of the picture open",
            where=where,
            hint="name height and width, as in resize=480x640",
        )
    return sizes[0], sizes[1]


def _laid_out(pixels: Array, layout: str) -> Array:
    """Returns pixels in height, width and channels as an array with the axes of `layout`."""
    axes = [0, 1]
    if "c" in layout:
        inner = layout.replace("n", "")
        axes = ["hwc".index(axis) for axis in inner]
    else:
        pixels = pixels[:, :, 0]
    array = np.ascontiguousarray(pixels.transpose(axes))
    return array[None] if "n" in layout else array


# ---- the file ------------------------------------------------------------------------------------


def _pillow(name: str, where: str) -> Any:
    """Returns the module `name` of Pillow."""
    try:
        import_module("PIL.Image")
        return import_module(f"PIL.{name}")
    except ImportError as error:
        raise MissingLibraryError(
            "pictures are read by Pillow", where=where, why=str(error),
            hint="pip install 'tcc[io]', or give an array: NAME=@file.npy",
        ) from error  # fmt: skip


def _upright(stream: BinaryIO, where: str) -> Any:
    """Returns the file's first frame, decoded and turned as its EXIF data says."""
    images, operations = _pillow("Image", where), _pillow("ImageOps", where)
    try:
        with warnings.catch_warnings():
            # Pillow warns of large pictures, which are refused below, and of damaged EXIF data.
            warnings.simplefilter("ignore")
            image = images.open(stream, formats=_FORMATS)
            _check_size(image.size[::-1], where)
            image.load()
            upright = operations.exif_transpose(image)
    except (InputError, MemoryError):
        raise
    except images.DecompressionBombError as error:
        raise _too_large(where, str(error)) from error
    except images.UnidentifiedImageError as error:
        why = f"it has none of the formats {', '.join(_FORMATS)}"
        raise InputError("the file is no picture", where=where, why=why) from error
    except Exception as error:
        # Pillow's decoders raise errors of many types for damaged files.
        raise InputError(
            "the picture is damaged", where=where, why=f"{error}", hint="copy the file again"
        ) from error
    return upright


def _check_size(size: _Size, where: str) -> None:
    if size[0] * size[1] > _MOST_PIXELS:
        raise _too_large(where, f"it has {size[1]} x {size[0]} pixels")


def _too_large(where: str, why: str) -> InputError:
    hint = f"scale it to at most {_MOST_PIXELS} pixels"
    return InputError("the picture is too large", where=where, why=why, hint=hint)


def _in_mode(image: Any, mode: str, where: str) -> Any:
    """Returns an image with 8 bits for each of the channels of `mode`."""
    if image.mode == "F":
        raise InputError(
            "the picture has floats", where=where, why="their range is unknown",
            hint="save the array with np.save",
        )  # fmt: skip
    if image.mode.startswith("I"):  # Pillow would clip 16 bits at 255
        levels = np.asarray(image).astype(np.int64)
        image = _pillow("Image", where).fromarray((np.clip(levels, 0, 65535) // 257).astype("u1"))
    if image.mode in ("P", "PA"):  # the palette may hold transparent colours
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


# ---- the size ------------------------------------------------------------------------------------


def _framed(
    image: Any, target: tuple[int | None, int | None], settings: Settings, where: str
) -> Any:
    """Returns the image in the size `target`: cropped, in a letterbox, or stretched."""
    size = (image.height, image.width)
    if len(settings.resize) == 1:
        size = _shorter_edge(size, settings.resize[0])
    height, width = target
    if height is None or width is None or not (settings.crop or settings.letterbox is not None):
        return _scaled(image, (height or size[0], width or size[1]), settings, where)
    box = (height, width)
    if settings.crop:
        return _cropped(image, size, box, settings, where)
    inner = _inside(size, box)
    scaled = _scaled(image, inner, settings, where)
    shade = round(settings.letterbox or 0.0)
    canvas = _pillow("Image", where).new(image.mode, (width, height), _colour(image.mode, shade))
    corner = ((width - inner[1]) // 2, (height - inner[0]) // 2) if settings.centre else (0, 0)
    canvas.paste(scaled, corner)
    return canvas


def _colour(mode: str, shade: int) -> int | Sequence[int]:
    return shade if mode == "L" else (shade, shade, shade, 255)[: len(mode)]


def _scaled(image: Any, size: _Size, settings: Settings, where: str) -> Any:
    if size == (image.height, image.width):
        return image
    _check_size(size, where)
    method = getattr(_pillow("Image", where).Resampling, settings.filter.upper())
    return image.resize(size[::-1], method)


def _shorter_edge(size: _Size, length: int) -> _Size:
    """Returns `size` scaled so that its shorter edge has `length`; the longer is rounded down."""
    height, width = size
    if height <= width:
        return length, max(1, width * length // height)
    return max(1, height * length // width), length


def _inside(size: _Size, box: _Size) -> _Size:
    """Returns the largest size in the proportions of `size` that fits `box`, rounded down."""
    if box[0] * size[1] <= box[1] * size[0]:
        return box[0], max(1, size[1] * box[0] // size[0])
    return max(1, size[0] * box[1] // size[1]), box[1]


def _around(size: _Size, box: _Size) -> _Size:
    """Returns the smallest size in the proportions of `size` that covers `box`."""
    if box[0] * size[1] >= box[1] * size[0]:
        return box[0], -(-size[1] * box[0] // size[0])
    return -(-size[0] * box[1] // size[1]), box[1]


def _cropped(image: Any, size: _Size, box: _Size, settings: Settings, where: str) -> Any:
    if len(settings.resize) != 1:
        size = _around(size, box)
    if size[0] < box[0] or size[1] < box[1]:
        raise InputError(
            f"resize={settings.resize[0]} is too small for the crop",
            where=where,
            why=f"{box[1]} x {box[0]} pixels are cut of {size[1]} x {size[0]}",
        )
    image = _scaled(image, size, settings, where)
    top, start = (round((n - m) / 2) for n, m in zip(size, box, strict=True))
    return image.crop((start, top, start + box[1], top + box[0]))
