"""What the rules say is kept for the backward pass, against what autograd keeps when the operator really runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.torch.trace import trace

Function = Callable[[torch.Tensor], torch.Tensor]
BATCH = 4


class Behind(nn.Module):
    """An operator behind a layer with weights, so that a gradient flows through it."""

    def __init__(self, first: nn.Module, then: Function) -> None:
        super().__init__()
        self.first = first
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.first(x))


def kept_by_autograd(module: nn.Module, inputs: torch.Tensor) -> int:
    """Run for real, and sum the storages that autograd saves, without parameters and single numbers."""
    own = {each.untyped_storage().data_ptr() for each in [*module.parameters(), *module.buffers()]}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.dim() and storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage  # held, so that no other storage takes its place
        return tensor

    module.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(inputs)
    assert result.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def kept_by_the_rules(module: nn.Module, inputs: torch.Tensor) -> int:
    return BATCH * sum(layer.stash_bytes for layer in layers_of(trace(module, (inputs,), "model")))


NAMED = {
    functional: "relu gelu silu mish softplus hardswish hardsigmoid relu6 elu celu selu leaky_relu hardtanh "
    "softsign tanhshrink normalize",
    torch: "sigmoid tanh exp expm1 sqrt rsqrt reciprocal log log1p log2 abs sin cos tan asin acos atan sinh cosh "
    "erf erfc square neg ceil sign",
}
FUNCTIONS: dict[str, Function] = {
    "power": lambda x: x**3,
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "threshold": lambda x: functional.threshold(x, 0.1, 0.0),
    "square": lambda x: x * x,
    "times a number": lambda x: x * 2.0,
    "over a number": lambda x: x / 2.0,
    "over a tensor": lambda x: x / (x + 3),
    "number over tensor": lambda x: 2 / x,
    "product with a detached factor": lambda x: x + x.detach() * x,
    "where": lambda x: torch.where(x > 0, x, x * 2.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "maximum": lambda x: torch.maximum(x, x + 1),
    "max of two": lambda x: torch.max(x, x + 1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
    "amax": lambda x: x.amax(-1),
    "max over a dimension": lambda x: x.max(-1)[0],
    "topk": lambda x: x.topk(2)[0],
    "sort": lambda x: x.sort()[0],
    "cumsum": lambda x: x.cumsum(-1),
    "glu": functional.glu,
    "cat": lambda x: torch.cat([x, x + 1], -1),
    "layer_norm": lambda x: functional.layer_norm(x, [8]),
    "matmul": lambda x: x.unsqueeze(1) @ x.unsqueeze(2),
    "einsum": lambda x: torch.einsum("bi,bj->bij", x, x),
    "views": lambda x: x.view(BATCH, 2, 4).transpose(1, 2).unsqueeze(-1).expand(-1, -1, -1, 3)[:, 1:].tanh(),
    "split": lambda x: x.split([3, 5], -1)[1].tanh(),
    "relu in place": functional.relu_,
    "silu in place": lambda x: functional.silu(x, inplace=True),
    "mish in place": lambda x: functional.mish(x, inplace=True),
    "hardswish in place": lambda x: functional.hardswish(x, inplace=True),
    "leaky_relu in place": lambda x: functional.leaky_relu(x, inplace=True),
    "hardtanh in place": lambda x: functional.hardtanh(x, inplace=True),
    "elu in place": lambda x: functional.elu(x, inplace=True),
    "relu6 in place": lambda x: functional.relu6(x, inplace=True),
    "mul in place": lambda x: (x + 1).mul_(x),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.view(BATCH, 2, 2, 2) for _ in range(3)]),
} | {name: getattr(module, name) for module, names in NAMED.items() for name in names.split()}


@pytest.mark.few(30)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_agree_with_autograd_on_features(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = Behind(nn.Linear(8, 8), FUNCTIONS[name]), torch.rand(BATCH, 8)
    assert kept_by_the_rules(module, inputs) == kept_by_autograd(module, inputs)


MODULES: list[nn.Module] = [
    nn.MaxPool2d(2),
    nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveAvgPool2d(2),
    nn.AdaptiveMaxPool2d(2),
    nn.GroupNorm(2, 8),
    nn.InstanceNorm2d(8),
    nn.Upsample(scale_factor=2),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.ZeroPad2d(1),
    nn.ReflectionPad2d(1),
    nn.ReplicationPad2d(1),
    nn.PixelShuffle(2),
    nn.Conv2d(8, 8, 3),
    nn.Conv2d(8, 8, 3, groups=8),
    nn.ConvTranspose2d(8, 8, 3),
    nn.Dropout2d(),
    nn.Flatten(),
    nn.PReLU(),
    nn.LocalResponseNorm(2),
    nn.Unfold(2),
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_rules_agree_with_autograd_on_images(module: nn.Module) -> None:
    torch.manual_seed(0)
    both, inputs = Behind(nn.Conv2d(3, 8, 3, padding=1), module), torch.rand(BATCH, 3, 8, 8)
    assert kept_by_the_rules(both, inputs) == kept_by_autograd(both, inputs)


def test_attention_on_cpu_keeps_what_the_rule_says() -> None:
    module, inputs = nn.MultiheadAttention(8, 2, batch_first=True), torch.rand(BATCH, 6, 8)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, x, x, need_weights=False)[0]

    both = Behind(nn.Linear(8, 8), Self())
    assert kept_by_the_rules(both, inputs) == kept_by_autograd(both, inputs)


def test_frozen_weights_need_no_input() -> None:
    module, inputs = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.rand(BATCH, 8)
    module[1].requires_grad_(False)
    assert kept_by_the_rules(module, inputs) == kept_by_autograd(module, inputs) == 4 * BATCH * 8


def test_where_the_rules_follow_the_gpu_or_the_safe_side() -> None:
    inputs = torch.rand(BATCH, 3, 8, 8)
    first = nn.Conv2d(3, 8, 1)
    image, hidden = BATCH * 3 * 64, BATCH * 8 * 64
    # The CPU keeps a float per element where the GPU's fused kernel keeps a byte.
    dropout = Behind(first, nn.Dropout())
    assert kept_by_autograd(dropout, inputs) == 4 * image + 4 * hidden
    assert kept_by_the_rules(dropout, inputs) == 4 * image + hidden
    # Two statistics per channel exist once a batch and are charged to every sample.
    norm = Behind(first, nn.BatchNorm2d(8))
    assert kept_by_autograd(norm, inputs) == 4 * image + 4 * hidden + 8 * 8
    assert kept_by_the_rules(norm, inputs) == 4 * image + 4 * hidden + BATCH * 8 * 8
