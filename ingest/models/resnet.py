"""Residual networks (He et al., arXiv 1512.03385), with torchvision's module names.

``conv1``, ``bn1``, ``layer1.0.conv1`` … ``layer4.2.bn3``, ``downsample.0``, ``fc``. As in torchvision, a
bottleneck block strides in its 3 x 3 convolution, and a block calls one ``nn.ReLU`` two or three times: every call
is a layer of its own, ``layer1.0.relu``, ``layer1.0.relu:1``, ….
"""

from __future__ import annotations

import torch
from torch import nn

_BATCH = 2


def _convolution(incoming: int, outgoing: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(incoming, outgoing, kernel, stride=stride, padding=kernel // 2, bias=False)


def _shortcut(incoming: int, outgoing: int, stride: int) -> nn.Sequential | None:
    """Return the 1 x 1 convolution that fits the input to the output, or None where they fit already."""
    if stride == 1 and incoming == outgoing:
        return None
    return nn.Sequential(_convolution(incoming, outgoing, 1, stride), nn.BatchNorm2d(outgoing))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: (batch, incoming, h, w) to (batch, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, incoming: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(incoming, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(incoming, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(convolutions(x) + shortcut(x))."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 and a 1 x 1 convolution and a shortcut; the output has 4 x ``width`` channels."""

    expansion = 4

    def __init__(self, incoming: int, width: int, stride: int) -> None:
        super().__init__()
        outgoing = width * self.expansion
        self.conv1 = _convolution(incoming, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outgoing, 1)
        self.bn3 = nn.BatchNorm2d(outgoing)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(incoming, outgoing, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(convolutions(x) + shortcut(x))."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out = out + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, four groups of blocks (``depths`` of them), global average pooling and one linear layer.

    The input is (batch, 3, 224, 224), the output (batch, ``classes``).
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], depths: tuple[int, int, int, int], classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _group(block, 64, 64, depths[0], stride=1)
        self.layer2 = _group(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _group(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _group(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score per class and image: (batch, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def _group(
    block: type[BasicBlock | Bottleneck], incoming: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    blocks: list[nn.Module] = [block(incoming, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def _with_images(module: nn.Module) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.empty(_BATCH, 3, 224, 224),)


def resnet34() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return ResNet34 (21,797,672 parameters) and a batch of two 224 x 224 images."""
    return _with_images(ResNet(BasicBlock, (3, 4, 6, 3)))


def resnet50() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return ResNet50 (25,557,032 parameters) and a batch of two 224 x 224 images."""
    return _with_images(ResNet(Bottleneck, (3, 4, 6, 3)))


def resnet152() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return ResNet152 (60,192,808 parameters) and a batch of two 224 x 224 images."""
    return _with_images(ResNet(Bottleneck, (3, 8, 36, 3)))
