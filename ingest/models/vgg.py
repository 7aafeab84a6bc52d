"""VGG networks (Simonyan and Zisserman, arXiv 1409.1556), configurations B, D and E.

Module names and order are those of the older torchvision, which had no adaptive pooling before the classifier:
``features.0`` … and ``classifier.0`` … to ``classifier.6``. VGG16 has 31 + 7 = 38 modules, the 38 that
Table II of PipePar cuts; the ``flatten`` between the two parts is a functional call.
"""

from __future__ import annotations

import torch
from torch import nn

_BATCH = 2
_POOL = 0
_VGG13 = (64, 64, _POOL, 128, 128, _POOL, 256, 256, _POOL, 512, 512, _POOL, 512, 512, _POOL)
_VGG16 = (64, 64, _POOL, 128, 128, _POOL, *[256] * 3, _POOL, *[512] * 3, _POOL, *[512] * 3, _POOL)
_VGG19 = (64, 64, _POOL, 128, 128, _POOL, *[256] * 4, _POOL, *[512] * 4, _POOL, *[512] * 4, _POOL)


class VGG(nn.Module):
    """Convolutions of 3 x 3 with ReLU and pooling, then three fully connected layers.

    ``channels`` lists the output channels of the convolutions, with 0 for a 2 x 2 max pooling.
    The input is (batch, 3, 224, 224), the output (batch, ``classes``).
    """

    def __init__(self, channels: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        self.features = _features(channels)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one score per class and image: (batch, classes)."""
        return self.classifier(torch.flatten(self.features(images), 1))


def _features(channels: tuple[int, ...]) -> nn.Sequential:
    modules: list[nn.Module] = []
    incoming = 3
    for outgoing in channels:
        if outgoing == _POOL:
            modules.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        modules += [nn.Conv2d(incoming, outgoing, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
        incoming = outgoing
    return nn.Sequential(*modules)


def _with_images(module: nn.Module) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.empty(_BATCH, 3, 224, 224),)


def vgg13() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return VGG13 (133,047,848 parameters) and a batch of two 224 x 224 images."""
    return _with_images(VGG(_VGG13))


def vgg16() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return VGG16 (138,357,544 parameters) and a batch of two 224 x 224 images."""
    return _with_images(VGG(_VGG16))


def vgg19() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return VGG19 (143,667,240 parameters) and a batch of two 224 x 224 images."""
    return _with_images(VGG(_VGG19))
