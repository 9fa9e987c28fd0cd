"""Encodes compiled GPU kernels as the table that runtime/src/gpu/images.h defines."""

from enum import Enum
from types import MappingProxyType

from tcc.backends.artifact.words import WordWriter
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.types import DTYPES

MAGIC = 0x01474D4943435474
VERSION = 3
# The alignment in bytes of the table, of its section of images, and of each image.
ALIGNMENT = 64
_HOST_CALLS = 1


class Platform(Enum):
    """The platform whose driver loads the code."""

    CUDA = 0
    HIP = 1


class BinaryKind(Enum):
    """The form of an image: machine code, or assembly that the driver translates."""

    CUBIN = 0
    PTX = 1
    HSACO = 2


class Param(Enum):
    """Kinds of kernel parameters, which say where the launch gets the parameter's value."""

    POINTER = 0  # the address of the launch's next buffer
    INT64 = 1  # the launch's next integer
    NULL = 2  # a null pointer
    TENSOR_MAP = 3  # the kernel's next tensor map, made for one of the launch's buffers


# `_MAP_TYPES` has CUDA's numbers of element types. `SWIZZLES[n]` is the width in bytes of the
# swizzle to which CUDA gives the number n.
_MAP_TYPES = MappingProxyType({"i8": 0, "f16": 6, "f32": 7, "bf16": 9})
SWIZZLES = (0, 32, 64, 128)


@frozen
class TensorMap:
    """Describes a tensor in a buffer of the launch to NVIDIA's copy engine (TMA).

    `buffer` is the position of the buffer. `sizes` and `strides` count elements of `dtype` (i8,
    f16, bf16 or f32), the outermost axis first; the last stride is 1. `box` is the shape that one
    copy moves. `swizzle` is the width in bytes of the swizzle of the box's rows; 0 means no
    swizzle. Elements outside the tensor read as zero.
    """

    buffer: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@frozen
class GpuKernel:
    """A kernel compiled for one architecture.

    `shared` is the number of bytes of dynamic shared memory, and `warps` the number of warps of a
    block. `params` has the parameters in order, and `maps` the tensor maps among them in order.
    Kernels may share an image. `stays`: the kernel is persistent, so a launch needs no more thread
    blocks than the device holds at once.
    """

    symbol: str
    image: bytes
    shared: int
    warps: int
    warp_size: int
    params: tuple[Param, ...]
    maps: tuple[TensorMap, ...]
    stays: bool


@frozen
class GpuVariant:
    """All kernels of a program for `arch` (sm_90, sm_90a, gfx942), in the program's order.

    CUDA's machine code runs on its architecture and on later ones of the same generation; PTX runs
    on all later ones. With a letter after the number, and on HIP, both run on that architecture
    only. `needs` is a text for people: the oldest driver that loads the code.
    """

    arch: str
    form: BinaryKind
    kernels: tuple[GpuKernel, ...]
    needs: str = ""


@frozen
class GpuImages:
    """The kernels of a program for several architectures of one platform.

    `allow_host`: operations without a GPU kernel may run as functions of the host, with copies
    there and back.
    """

    platform: Platform
    variants: tuple[GpuVariant, ...]
    allow_host: bool = False


def encode_images(images: GpuImages) -> bytes:
    """Returns the bytes of the table; equal images give equal bytes.

    Raises InternalError if variants do not fit the platform or have different numbers of kernels.
    """
    _check(images)
    writer = _Writer()
    writer.images(images)
    return writer.table(MAGIC, VERSION, ALIGNMENT, len(writer.blob)) + bytes(writer.blob)


def _check(images: GpuImages) -> None:
    hip = images.platform is Platform.HIP
    if any((variant.form is BinaryKind.HSACO) != hip for variant in images.variants):
        raise InternalError("a variant has code of another platform", where="encode_images")
    if len({len(variant.kernels) for variant in images.variants}) != 1:
        raise InternalError("variants have different kernels", where="encode_images")


class _Writer(WordWriter):
    """Writes the table; equal images are stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.blob = bytearray()
        self._images: dict[bytes, int] = {}
        self._ranges: list[tuple[int, int]] = []

    def images(self, images: GpuImages) -> None:
        for variant in images.variants:
            for kernel in variant.kernels:
                self._image(_stored(kernel, variant.form))
        self.put(images.platform.value, _HOST_CALLS if images.allow_host else 0)
        self.put(len(images.variants[0].kernels), len(self._ranges), len(images.variants))
        for place in self._ranges:
            self.put(*place)
        for variant in images.variants:
            self.string(variant.arch)
            self.put(variant.form.value)
            self.string(variant.needs)
            for kernel in variant.kernels:
                self._kernel(kernel, variant.form)

    def _kernel(self, kernel: GpuKernel, form: BinaryKind) -> None:
        self.string(kernel.symbol)
        self.put(self._images[_stored(kernel, form)], kernel.shared)
        self.put(kernel.warps * kernel.warp_size, kernel.stays, len(kernel.params))
        self.put(*(param.value for param in kernel.params))
        for tensor_map in kernel.maps:
            strides = (
                DTYPES[tensor_map.dtype].bytes * stride for stride in tensor_map.strides[:-1]
            )
            self.put(
                tensor_map.buffer, _MAP_TYPES[tensor_map.dtype], SWIZZLES.index(tensor_map.swizzle)
            )
            self.put(len(tensor_map.sizes), *tensor_map.sizes, *strides, *tensor_map.box)

    def _image(self, data: bytes) -> None:
        if data in self._images:
            return
        self._images[data] = len(self._ranges)
        self._ranges.append((len(self.blob), len(data)))
        self.blob += data + bytes(-len(data) % ALIGNMENT)


def _stored(kernel: GpuKernel, form: BinaryKind) -> bytes:
    """Returns the image as the table stores it.

    PTX ends with a zero byte, because the driver reads a C string.
    """
    text = form is BinaryKind.PTX and not kernel.image.endswith(b"\0")
    return kernel.image + b"\0" if text else kernel.image
