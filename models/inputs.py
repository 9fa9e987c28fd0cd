"""Seeded inputs for the models, drawn as the manifest says.

Generators:
  image     smooth random fields plus fine noise, about zero mean and unit variance per channel.
            White noise alone would make all images look alike after global pooling.
  normal    standard normal values
  latent    InfoGAN's CelebA code: ten one-hot codes of ten, then 128 uniform values in [-1, 1)
  integers  uniform integers in [low, high]
  mask      ones up to a seeded length in [low, high], zeros after it (an attention mask)
"""

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.typing import NDArray

from models.manifest import InputSpec, model_spec

Array = NDArray[np.generic]

_LATENT_CODES = 10
_LATENT_CODE_SIZE = 10


def _smooth_axis(field: NDArray[np.float64], axis: int, size: int) -> NDArray[np.float64]:
    """Interpolates `field` linearly along `axis` to `size` samples."""
    source = field.shape[axis]
    at = np.linspace(0.0, source - 1.0, size)
    low = np.minimum(at.astype(np.int64), source - 2)
    weight = (at - low).reshape([-1 if i == axis else 1 for i in range(field.ndim)])
    left: NDArray[np.float64] = np.take(field, low, axis)
    right: NDArray[np.float64] = np.take(field, low + 1, axis)
    mixed: NDArray[np.float64] = left * (1 - weight) + right * weight
    return mixed


def random_image(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draws images of shape [n, channels, height, width]: coarse shapes, texture and noise."""
    batch, channels, height, width = shape
    image = 0.25 * rng.standard_normal(shape)
    for cells, amplitude in ((3, 1.0), (9, 0.7), (33, 0.5)):
        coarse = rng.standard_normal((batch, channels, cells, cells))
        image += amplitude * _smooth_axis(_smooth_axis(coarse, 2, height), 3, width)
    return image.astype(np.float32)


def _image(rng: np.random.Generator, spec: InputSpec) -> Array:
    return random_image(rng, spec.shape)


def _normal(rng: np.random.Generator, spec: InputSpec) -> Array:
    return rng.standard_normal(spec.shape, dtype=np.float32)


def random_latent(rng: np.random.Generator, rows: int, size: int) -> NDArray[np.float32]:
    """Draws `rows` InfoGAN codes of `size` values: the categorical codes, then the noise."""
    coded = _LATENT_CODES * _LATENT_CODE_SIZE
    picks = rng.integers(0, _LATENT_CODE_SIZE, (rows, _LATENT_CODES))
    codes = np.eye(_LATENT_CODE_SIZE, dtype=np.float32)[picks].reshape(rows, coded)
    noise = rng.uniform(-1.0, 1.0, (rows, size - coded)).astype(np.float32)
    return np.concatenate([codes, noise], axis=1)


def _latent(rng: np.random.Generator, spec: InputSpec) -> Array:
    return random_latent(rng, spec.shape[0], prod(spec.shape[1:])).reshape(spec.shape)


def _integers(rng: np.random.Generator, spec: InputSpec) -> Array:
    return rng.integers(spec.low, spec.high, spec.shape, dtype=np.int64, endpoint=True)


def _mask(rng: np.random.Generator, spec: InputSpec) -> Array:
    length = rng.integers(spec.low, spec.high, endpoint=True)
    row = (np.arange(spec.shape[-1]) < length).astype(np.int64)
    return np.broadcast_to(row, spec.shape).copy()


_GENERATORS: dict[str, tuple[str, Callable[[np.random.Generator, InputSpec], Array]]] = {
    "image": ("f32", _image),
    "normal": ("f32", _normal),
    "latent": ("f32", _latent),
    "integers": ("i64", _integers),
    "mask": ("i64", _mask),
}


def make_input(spec: InputSpec, seed: int) -> Array:
    """Draws one input. Equal (spec, seed) give equal arrays; another name gives another array."""
    dtype, draw = _GENERATORS[spec.generator]
    if dtype != spec.dtype:
        raise ValueError(f"input {spec.name!r}: {spec.generator} gives {dtype}, not {spec.dtype}")
    return draw(np.random.default_rng([seed, *spec.name.encode()]), spec)


def make_inputs(name: str, seed: int) -> dict[str, Array]:
    """Draws all inputs of model `name` in the manifest's order; raises KeyError if it is
    unknown."""
    return {spec.name: make_input(spec, seed) for spec in model_spec(name).inputs}
