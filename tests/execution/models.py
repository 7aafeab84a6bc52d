"""Small models that are hard to split, each in its own way: a function that returns a model and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pipecut.ingest.models.gpt import GPT
from pipecut.ingest.models.resnet import BasicBlock
from tests.ingest.torch.tiny_models import Calls, attend, explicit_attention

Inputs = Any
"""A tuple of tensors, or a mapping of keywords to them."""
Made = tuple[nn.Module, Inputs]


def cnn() -> Made:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    return model, (torch.randn(4, 3, 8, 8),)


def resnet() -> Made:
    blocks = [BasicBlock(4, 4, 1), BasicBlock(4, 8, 2)]
    stem = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), (
        torch.randn(2, 3, 10, 10),
    )


class UNet(nn.Module):
    """Two levels; the skip of the outer one leads over all layers of the inner one."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.ConvTranspose2d(8, 2, 2, stride=2)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x).relu_()
        two = self.down2(functional.max_pool2d(one, 2)).relu_()
        inner = self.middle(functional.max_pool2d(two, 2)).relu_()
        back = torch.cat([self.up2(inner), functional.avg_pool2d(one, 2)], 1)
        return self.last(torch.cat([self.up1(back), one], 1))


def unet() -> Made:
    return UNet(), (torch.randn(3, 1, 8, 8),)


def gpt() -> Made:
    return GPT(layers=2, hidden=8, heads=2, vocabulary=13, sequence=5), (torch.randint(0, 13, (3, 5)),)


def tied_gpt() -> Made:
    model = GPT(layers=1, hidden=8, heads=2, vocabulary=13, sequence=5)
    model.head.weight = model.tokens.weight
    return model, (torch.randint(0, 13, (3, 5)),)


def batch_norm() -> Made:
    layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ELU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Sigmoid()), (torch.randn(5, 6),)


def dropout() -> Made:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.0), nn.ReLU(), nn.Dropout(0.0, inplace=True), nn.Linear(8, 2)
    ), (torch.randn(4, 6),)


def views_written() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        x[:, 0] = 0
        x[:, 1:3] *= 2
        return m.b(x).mul_(x)

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


def masks() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(4)
        mask[1:] = 1
        positions = torch.arange(4, dtype=x.dtype).softmax(0)
        x = m.a(x * mask + positions)
        return m.b(x * positions) * mask

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


def derived_weights() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        weight = m.scale * torch.softmax(m.raw, 0)
        return functional.linear(functional.linear(x, weight).tanh(), weight) @ weight.t()

    return Calls(run, scale=nn.Parameter(torch.tensor(2.0)), raw=nn.Parameter(torch.randn(4, 4))), (
        torch.randn(3, 4),
    )


def attention() -> Made:
    parts = {name: nn.Linear(8, 8) for name in "qkvo"}
    return Calls(attend, **parts), (torch.randn(2, 3, 8),)


def fused_attention() -> Made:
    return Calls(explicit_attention, qkv=nn.Linear(8, 24)), (torch.randn(2, 3, 8),)


def called_twice() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.a(m.b(m.a(x).relu()).relu())

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


def regions() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True)
            scale = scale * 2 + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = m.b(x / scale)
            x = m.a(x)
        return x.float() + scale

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


def chosen() -> Made:
    """Return a model in which whole numbers and truth values cross cuts, for which no gradient comes back."""

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        best, sign = x.argmax(-1, keepdim=True), x > 0
        x = m.b(x)
        return torch.where(sign, x, -x).gather(-1, best) * x.detach().sum(-1, keepdim=True)

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


class Keywords(nn.Module):
    """Takes keywords and returns a mapping, with values among the outputs that no input changes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, use: bool = True) -> dict[str, Any]:
        hidden = self.a(x).tanh()
        return {"out": self.b(hidden + bias), "hidden": hidden, "none": None, "used": use}


def keywords() -> Made:
    return Keywords(), {"x": torch.randn(3, 4), "bias": torch.randn(3, 4)}


def counting() -> Made:
    """Return a model that changes buffers: one that it counts in, and one that it keeps a mean in."""

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        with torch.no_grad():
            m.mean.mul_(0.9).add_(x.mean())
        x = m.b(x)
        m.count = m.count + 1
        return x

    model = Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    model.register_buffer("mean", torch.zeros(()))
    model.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
    return model, (torch.randn(3, 4),)


def input_changed() -> Made:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        first = m.a(x + 1)
        x.mul_(2)
        return m.b(first * x) + x

    return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)


MODELS: dict[str, Callable[[], Made]] = {
    make.__name__: make
    for make in (
        cnn,
        resnet,
        unet,
        gpt,
        tied_gpt,
        batch_norm,
        dropout,
        views_written,
        masks,
        attention,
        fused_attention,
        called_twice,
        regions,
        chosen,
        keywords,
        counting,
        input_changed,
    )
}
