"""Image generators: FSRCNN (super resolution) and the InfoGAN generator."""

import numpy as np
import torch
from torch import Tensor, nn

from models.export import Recipe
from models.inputs import random_image, random_latent
from models.seeding import (
    calibrate_batch_norms,
    calibrate_convolutions,
    generator,
    seed_convolutions,
)


class FSRCNN(nn.Module):
    """FSRCNN(d, s, m): extract 5x5, shrink 1x1, m maps 3x3, expand 1x1, upscale 9x9."""

    def __init__(self, d: int, s: int, m: int, scale: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, d, 5, padding=2), nn.PReLU(d)]
        layers += [nn.Conv2d(d, s, 1), nn.PReLU(s)]
        for _ in range(m):
            layers += [nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s)]
        layers += [nn.Conv2d(s, d, 1), nn.PReLU(d)]
        self.layers = nn.Sequential(*layers)
        self.upscale = nn.ConvTranspose2d(d, 1, 9, scale, padding=4, output_padding=scale - 1)

    def forward(self, luma: Tensor) -> Tensor:
        image: Tensor = self.upscale(self.layers(luma))
        return image


def fsrcnn() -> Recipe:
    """Returns FSRCNN(56, 12, 4) for a factor of two on one luma channel."""
    model = FSRCNN(d=56, s=12, m=4, scale=2)
    seed_convolutions(model, generator(56))
    batch = random_image(np.random.default_rng(56), (4, 1, 128, 128))
    calibrate_convolutions(model, torch.from_numpy(batch))
    return Recipe(model, "torchscript", 17)


class InfoGANGenerator(nn.Module):
    """InfoGAN's CelebA generator: a code of 228 values to 3x32x32, with batch norm on two
    layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(228, 448, 2, bias=False),
            nn.BatchNorm2d(448),
            nn.ReLU(),
            nn.ConvTranspose2d(448, 256, 4, 2, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(),
            nn.ConvTranspose2d(256, 128, 4, 2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, padding=1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        image: Tensor = self.layers(z.reshape(z.shape[0], 228, 1, 1))
        return image


def infogan() -> Recipe:
    """Returns the InfoGAN generator with its batch norms as nodes."""
    model = InfoGANGenerator()
    seed_convolutions(model, generator(228))
    batch = random_latent(np.random.default_rng(228), 32, 228)
    calibrate_batch_norms(model, torch.from_numpy(batch))
    return Recipe(model, "torchscript", 17, keep_batch_norm=True)
