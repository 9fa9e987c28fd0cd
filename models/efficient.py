"""EfficientNet-B0 as timm's `efficientnet_b0` builds it (Tan and Le 2019, arXiv 1905.11946)."""

import numpy as np
import torch
from torch import Tensor, nn

from models.export import Recipe
from models.inputs import random_image
from models.seeding import calibrate_batch_norms, generator, seed_convolutions

# (kernel, expansion, channels, repeats, first stride): table 1 of the paper.
STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)


def _conv_bn(channels: int, out: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out)]


class ChannelGate(nn.Module):
    """Squeeze and excitation: multiplies each channel by a gate that reads all channels' means."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, reduced, 1)
        self.expand = nn.Conv2d(reduced, channels, 1)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(self.activation(self.reduce(means))))


class GatedBottleneck(nn.Module):
    """Expand 1x1, depthwise, gate, project 1x1 without activation, and a shortcut."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_conv_bn(channels, hidden, 1, 1, 1), nn.SiLU()]
        layers += [*_conv_bn(hidden, hidden, kernel, stride, hidden), nn.SiLU()]
        layers += [ChannelGate(hidden, channels // 4), *_conv_bn(hidden, out, 1, 1, 1)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class EfficientNetB0(nn.Module):
    """EfficientNet-B0: 5.3 M parameters, 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv_bn(3, 32, 3, 2, 1), nn.SiLU()]
        channels = 32
        for kernel, expansion, out, repeats, first_stride in STAGES:
            for index in range(repeats):
                stride = first_stride if index == 0 else 1
                layers.append(GatedBottleneck(channels, out, kernel, stride, expansion))
                channels = out
        layers += [*_conv_bn(channels, 1280, 1, 1, 1), nn.SiLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def efficientnet_b0() -> Recipe:
    """EfficientNet-B0 with batch norms folded by the exporter."""
    model = EfficientNetB0()
    seed_convolutions(model, generator(5))
    images = random_image(np.random.default_rng(5), (8, 3, 224, 224))
    calibrate_batch_norms(model, torch.from_numpy(images))
    return Recipe(model, "dynamo", 18)
