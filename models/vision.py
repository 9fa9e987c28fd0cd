"""Image classifiers and dense predictors: ResNet-50, MobileNetV2, U-Net, CSRNet."""

import numpy as np
import torch
from torch import Tensor, nn

from models.export import Recipe
from models.inputs import random_image
from models.seeding import (
    calibrate_batch_norms,
    calibrate_convolutions,
    generator,
    seed_convolutions,
)


def _batch(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(random_image(np.random.default_rng(seed), shape))


class Bottleneck(nn.Module):
    """ResNet v1.5 block: 1x1 reduce, 3x3 (with the stride), 1x1 expand by four, shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        result: Tensor = self.relu(y + self.downsample(x))
        return result


class ResNet50(nn.Module):
    """ResNet-50 (v1.5) with 25.6 M parameters and 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        features = self.pool(self.blocks(self.stem(x)))
        logits: Tensor = self.fc(torch.flatten(features, 1))
        return logits


def resnet50() -> Recipe:
    """Returns ResNet-50 with batch norms as nodes, like the ONNX model zoo's."""
    model = ResNet50()
    seed_convolutions(model, generator(50))
    calibrate_batch_norms(model, _batch(50, 8, 3, 224, 224))
    return Recipe(model, "torchscript", 17, keep_batch_norm=True)


def _conv_bn_relu6(channels: int, out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """A MobileNetV2 block: expand 1x1, depthwise 3x3, project 1x1 without activation."""

    def __init__(self, channels: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(_conv_bn_relu6(channels, hidden, 1, 1, 1))
        layers.append(_conv_bn_relu6(hidden, hidden, 3, stride, hidden))
        layers += [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """MobileNetV2 at width 1.0 with 3.5 M parameters and 1000 classes."""

    # Each row is (expansion, channels, repeats, first stride), from table 2 of the paper.
    STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu6(3, 32, 3, 2, 1)]
        channels = 32
        for expand, out, repeats, first_stride in self.STAGES:
            for index in range(repeats):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, out, stride, expand))
                channels = out
        layers.append(_conv_bn_relu6(channels, 1280, 1, 1, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).mean((2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def mobilenet_v2() -> Recipe:
    """Returns MobileNetV2; the exporter folds the batch norms."""
    model = MobileNetV2()
    seed_convolutions(model, generator(2))
    calibrate_batch_norms(model, _batch(2, 8, 3, 224, 224))
    return Recipe(model, "dynamo", 18)


def _double_conv(channels: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for source in (channels, out):
        layers += [nn.Conv2d(source, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net with three poolings; channels double per level, transposed convolutions upsample."""

    def __init__(self, base: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [base << level for level in range(levels + 1)]
        sources = [3, *widths[:-1]]
        self.down = nn.ModuleList(map(_double_conv, sources, widths))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, out, 2, 2) for deep, out in pairs)
        self.merge = nn.ModuleList(_double_conv(2 * out, out) for _, out in pairs)
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        mask: Tensor = self.head(x)
        return mask


def unet() -> Recipe:
    """Returns a U-Net of base 32 and two classes; the exporter folds the batch norms."""
    model = UNet(base=32, levels=3, classes=2)
    seed_convolutions(model, generator(32))
    calibrate_batch_norms(model, _batch(32, 4, 3, 128, 128))
    return Recipe(model, "torchscript", 17)


def _conv_relu(channels: int, out: int, dilation: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, padding=dilation, dilation=dilation), nn.ReLU()]


class CSRNet(nn.Module):
    """CSRNet (B): the first ten convolutions of VGG-16, then six with dilation 2, then 1x1."""

    FRONT = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512)  # Zero stands for a pooling.
    BACK = (512, 512, 512, 256, 128, 64)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for out in self.FRONT:
            if out == 0:
                layers.append(nn.MaxPool2d(2))
            else:
                layers += _conv_relu(channels, out, 1)
                channels = out
        for out in self.BACK:
            layers += _conv_relu(channels, out, 2)
            channels = out
        self.features = nn.Sequential(*layers)
        self.density = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        density: Tensor = self.density(self.features(x))
        return density


def csrnet() -> Recipe:
    """Returns CSRNet, which maps an image to a density map at an eighth of its size."""
    model = CSRNet()
    seed_convolutions(model, generator(16))
    calibrate_convolutions(model, _batch(16, 2, 3, 224, 224))
    return Recipe(model, "dynamo", 18)
