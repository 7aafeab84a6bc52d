"""Small models made to fool a mode that looks on while a model runs: each does something that it might not see."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, weight_norm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import checkpoint

from tests.ingest.torch.tiny_models import Calls

Forward = Callable[..., Any]
Made = tuple[Any, tuple[Any, ...]]
Builder = Callable[[], Made]

FOLLOWED: dict[str, Builder] = {}
"""Models that are followed."""
EXPORTED: dict[str, Builder] = {}
"""Models that are exported: what an export makes of them is seen by an export only."""


def followed(build: Builder) -> Builder:
    FOLLOWED[build.__name__.replace("_", " ")] = build
    return build


def exported(build: Builder) -> Builder:
    EXPORTED[build.__name__.replace("_", " ")] = build
    return build


def on(forward: Forward, *shapes: tuple[int, ...], **parts: nn.Module | nn.Parameter) -> Made:
    """Return a model of a forward and two linear layers, a and b, and of what else is named."""
    own = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)} | parts
    return Calls(forward, **own), tuple(torch.empty(shape) for shape in shapes or ((2, 8),))


@followed
def counter_in_a_global() -> Made:
    state = {"calls": 0}

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        for part in (m.a, m.b):
            state["calls"] += 1
            x = part(x).relu() if state["calls"] % 2 else part(x).tanh() * 2
        return x

    return on(forward)


@followed
def counter_on_the_module() -> Made:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.calls = nn.Linear(8, 8), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.a(x) * self.calls if self.calls > 1 else self.a(x)

    counting = Counting()
    return on(lambda m, x: m.inner(m.inner(m.inner(x))), inner=counting)


@followed
def closure_over_a_tensor_constant() -> Made:
    constant = torch.ones(8)
    return on(lambda m, x: m.a(x) * constant + m.b(x + constant))


@followed
def tensor_leaked_by_a_block_and_read_by_another() -> Made:
    leak: list[torch.Tensor] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        leak.clear()
        y = m.a(x)
        leak.append(y * 3)
        return m.b(y) + leak[0]

    return on(forward)


@followed
def in_place_operations_on_views() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).clone()
        half = y[:, :4]
        half.mul_(2)
        y[:, 4:] = half + 1
        y.add_(1).relu_()
        return m.b(y)

    return on(forward)


@followed
def writes_through_a_view_of_a_view() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x) + 0
        y.view(2, 2, 4)[:, 1].transpose(0, 1).fill_(0.5)
        z = y.unsqueeze(1)
        z.squeeze_(1)
        return m.b(z) + y

    return on(forward)


@followed
def regions_without_gradients() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = m.a(x).relu()
            with torch.enable_grad():
                z = m.b(x).tanh()
            w = (y + z).exp()
        return m.b(y + z) + w.detach()

    return on(forward)


@followed
def gradients_switched_without_a_region() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        y = m.a(x).relu()
        torch.set_grad_enabled(True)
        return m.b(y) * m.a(x)

    return on(forward)


@followed
def decorated_without_gradients() -> Made:
    @torch.no_grad()
    def frozen(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return part(x).relu()

    return on(lambda m, x: m.b(frozen(m.a, x)))


@followed
def autocast() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.a(x)
            with torch.autocast("cpu", enabled=False):
                z = m.b(y.float())
        return z + m.b(x)

    return on(forward)


@followed
def dropout_that_is_off() -> Made:
    return on(lambda m, x: m.b(m.c(m.a(x)).relu_()), c=nn.Dropout(0.0))


@followed
def dropouts() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.dropout(m.a(x), 0.3, training=True)
        z = functional.dropout(m.b(y), 0.3, training=False)
        return functional.alpha_dropout(z, 0.1, training=True) + functional.dropout(y, 0.0)

    return on(forward)


@followed
def module_called_twice() -> Made:
    return on(lambda m, x: m.a(m.b(m.a(x)).relu()))


@exported
def block_listed_twice() -> Made:
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        for part in m.blocks:
            x = part(x)
        return x

    return on(forward, blocks=nn.ModuleList([block, nn.Linear(8, 8), block]))


@followed
def module_shared_between_blocks() -> Made:
    class Block(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.own, self.shared = nn.Linear(8, 8), shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(self.own(x)).relu()

    shared = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return on(lambda m, x: m.d(m.c(x)), c=Block(shared), d=Block(shared))


@followed
def tied_weights() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x).relu()) + m.a(x))
    model.b.weight = model.a.weight
    return model, inputs


@followed
def weight_used_of_another_module() -> Made:
    return on(lambda m, x: functional.linear(m.a(x), m.b.weight.t(), m.a.bias))


@followed
def reference_to_the_block_before() -> Made:
    class Block(nn.Module):
        def __init__(self, before: nn.Module | None) -> None:
            super().__init__()
            self.own = nn.Linear(8, 8)
            self.reach: Any = (lambda: before) if before is not None else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.own(x)
            return y if self.reach is None else y + self.reach().own(x)

    first = Block(None)
    return on(lambda m, x: m.d(m.c(x)), c=first, d=Block(first))


@followed
def lists_that_grow() -> Made:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.seen, self.table = nn.Linear(8, 8), [1], {"inner": [0]}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(self.seen))
            self.table["inner"].append(2)
            self.last = len(self.seen)
            return self.a(x) * sum(self.seen)

    return on(lambda m, x: m.d(m.c(x)), c=Growing(), d=Growing())


@followed
def hooks() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x)))
    model.a.register_forward_hook(lambda _, given, result: result.relu() + given[0])
    model.b.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    return model, inputs


@exported
def hook_on_the_backward_pass() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x)))
    model.a.register_full_backward_hook(lambda *_: None)
    return model, inputs


@followed
def hook_that_looks_at_gradients() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        y.register_hook(lambda gradient: gradient * 2)
        return m.b(y)

    return on(forward)


@exported
def vectorised_map() -> Made:
    return on(lambda m, x: torch.func.vmap(lambda row: m.a(row).sum() + row)(x))


@exported
def gradient_inside_forward() -> Made:
    return on(lambda m, x: m.b(torch.func.grad(lambda row: m.a(row).pow(2).sum())(x)))


@followed
def checkpointed_region() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda z: m.b(m.a(z).relu()), x, use_reentrant=False)
        return checkpoint(lambda z: m.a(z).tanh(), y, use_reentrant=True)

    return on(forward)


@followed
def factories_like_a_result() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        fresh = torch.zeros_like(y) + torch.ones_like(x) * torch.empty_like(y).fill_(2)
        more = y.new_zeros(2, 8) + torch.full_like(y, 0.5) + y.new_full((8,), 2.0) + torch.rand_like(y)
        return m.b(y * fresh + more)

    return on(forward)


@followed
def factories_that_are_written() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        out[:, :4] = m.a(x)[:, :4]
        other = torch.zeros(2, 8, device=x.device, dtype=x.dtype)
        other.copy_(m.b(x))
        mask = torch.triu(torch.full((8, 8), -math.inf, device=x.device), 1)
        return out + other + (x @ mask.exp())

    return on(forward)


@followed
def several_outputs() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        one, two = m.a(x).chunk(2, -1)
        three, four, five = m.b(x).split([2, 2, 4], -1)
        values, places = x.topk(4, dim=-1)
        first, *_ = torch.unbind(m.a(x), 1)
        highest, where = m.b(x).max(-1)
        return torch.cat([one * two, three * four, five, values * places], -1) + (first + highest * where)[
            :, None
        ].expand(2, 14).repeat(1, 1)

    return on(forward)


@followed
def einsum_and_products() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).view(2, 2, 4)
        scores = torch.einsum("bid,bjd->bij", y, y)
        return torch.baddbmm(y, scores, y) + torch.tensordot(y, m.w, dims=1) + torch.matmul(scores, y)

    return on(forward, w=nn.Parameter(torch.empty(4, 4)))


@followed
def attention_by_torch() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part(x).view(2, 6, 2, 4).transpose(1, 2) for part in (m.a, m.b, m.a))
        mask = torch.ones(6, 6, dtype=torch.bool, device=x.device).tril()
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.1)
        again = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return m.b((out + again).transpose(1, 2).reshape(2, 6, 8))

    return on(forward, (2, 6, 8))


@followed
def multi_head_attention() -> Made:
    return on(
        lambda m, x: m.attention(m.a(x), x, m.b(x), need_weights=True)[0],
        (2, 6, 8),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
    )


@followed
def transformer_of_torch() -> Made:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return on(lambda m, x: m.encoder(x), (2, 6, 8), encoder=nn.TransformerEncoder(layer, 2))


@followed
def recurrent_layers() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out, (hidden, _) = m.lstm(m.a(x))
        more, _ = m.gru(out)
        return m.b(more) + hidden[-1][:, None]

    lstm, gru = nn.LSTM(8, 8, num_layers=2, batch_first=True), nn.GRU(8, 8, batch_first=True)
    return on(forward, (2, 6, 8), lstm=lstm, gru=gru)


@followed
def buffers_written() -> Made:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.steps: torch.Tensor
            self.scale: torch.Tensor
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("scale", torch.ones(8), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            y = self.a(x) * self.scale
            self.scale.mul_(0.5)
            self.steps = self.steps * 2
            return y * self.scale / self.steps

    return on(lambda m, x: m.c(m.c(x)), c=Average())


@followed
def batch_statistics() -> Made:
    return on(lambda m, x: m.norm(m.a(x)) + m.b(x), norm=nn.BatchNorm1d(8))


@followed
def spectral_parametrization() -> Made:
    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    model, inputs = on(lambda m, x: m.b(m.a(x)))
    parametrize.register_parametrization(model.a, "weight", Symmetric())
    parametrizations.weight_norm(model.b)
    return model, inputs


@followed
def weight_norm_of_old() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight_norm(model.a)
    return model, inputs


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.half = x / 2
        return (x @ weight) * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad_outputs[0] @ weight.t() * 2, x.t() @ grad_outputs[0] * 2


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * ctx.saved_tensors[0]


@followed
def functions_with_gradients_of_their_own() -> Made:
    return on(lambda m, x: m.b(Apart.apply(Doubling.apply(m.a(x), m.b.weight))))


@exported
def conditional_region() -> Made:
    return on(lambda m, x: torch.cond(x.sum() > 0, lambda y: m.a(y), lambda y: m.b(y), (x,)))


@exported
def number_out_of_a_tensor() -> Made:
    return on(lambda m, x: m.a(x) * int(torch.tensor(3)) + m.b(x))


@exported
def branch_on_a_value() -> Made:
    return on(lambda m, x: m.a(x) if x.sum() > 0 else m.b(x))


@exported
def caught_branch_on_a_value() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.b(x)
        try:
            return m.a(y) if bool((y > 0).all()) else y
        except Exception:
            return m.a(y) * 2

    return on(forward)


@exported
def size_out_of_values() -> Made:
    return on(lambda m, x: m.a(x[x[:, 0] > 0]).sum(0, keepdim=True) + m.b(x))


@exported
def data_of_a_result() -> Made:
    return on(lambda m, x: m.b(m.a(x).data * 2) + x)


@exported
def data_of_a_weight() -> Made:
    return on(lambda m, x: m.b(m.a(x)) + m.a.weight.data.sum())


@exported
def parameter_of_no_module() -> Made:
    hidden = [nn.Parameter(torch.empty(8))]
    return on(lambda m, x: m.b(m.a(x)) * hidden[0])


@exported
def result_of_another_kind() -> Made:
    @dataclass
    class Result:
        value: torch.Tensor

    return on(lambda m, x: Result(m.a(x)))


@followed
def results_in_containers() -> Made:
    return on(lambda m, x: {"a": (m.a(x), [m.b(x)]), "n": 3, "none": None, "x": x, "w": m.a.weight})


@followed
def views_as_results() -> Made:
    def forward(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
        y = m.a(x)
        y.mul_(2)
        return [y.t(), y[0:1], m.b(y).view(2, 2, 4), y.detach()]

    return on(forward)


@followed
def conversions_that_do_nothing() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).to(torch.float32).float().contiguous().type_as(x)
        z = y.double().to(y.dtype).clone().cpu() if y.device.type == "cpu" else y.double().to(y.dtype).clone()
        return m.b(z) + m.a.weight.float().sum()

    return on(forward)


@followed
def random_choice() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        chosen = random.Random(3)  # noqa: S311 (no secret)
        return m.a(x) if chosen.random() < 0.5 else m.b(x).relu()

    return on(forward)


@followed
def attribute_access_of_its_own() -> Made:
    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            object.__setattr__(self, "_hidden", 3)

        def __getattr__(self, name: str) -> Any:
            if name == "factor":
                return object.__getattribute__(self, "_hidden")
            return super().__getattr__(name)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) * self.factor

    return on(lambda m, x: m.c(x), c=Hiding())


@followed
def module_outside_the_tree() -> Made:
    outside = [nn.ReLU(), nn.Softmax(-1)]
    return on(lambda m, x: m.b(outside[1](outside[0](m.a(x)))))


@followed
def forward_called_by_name() -> Made:
    return on(lambda m, x: m.b.forward(m.a.forward(x)) + m.a(x))


@followed
def forward_replaced_on_the_object() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x)))
    plain = model.a.forward
    model.a.forward = functools.partial(lambda run, x: run(x).relu() * 2, plain)  # type: ignore[method-assign]
    return model, inputs


@followed
def asks_whether_it_is_compiled() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x) if torch.compiler.is_compiling() else m.a(m.a(x))
        return y.relu() if torch.compiler.is_exporting() else m.b(y)

    return on(forward)


@followed
def constants_made_in_forward() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0] * 4, device=x.device)
        scale *= 2
        index = torch.arange(8, device=x.device).flip(0)
        return m.b(m.a(x) * scale)[:, index] + torch.tensor(1.5, device=x.device)

    return on(forward)


@followed
def indexing() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        return m.b(torch.cat([y[:, None, ::2].squeeze(1), y[..., -4:]], -1)) + y[:, [0, 1, 2, 3, 4, 5, 6, 7]]

    return on(forward)


@followed
def constants_held_in_many_places() -> Made:
    in_closure, in_default, in_partial = torch.ones(8), torch.ones(8), torch.ones(8)

    def scaled(x: torch.Tensor, by: torch.Tensor = in_default) -> torch.Tensor:
        return x * by + in_closure

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        inner = functools.partial(lambda more, y: scaled(y) + more, in_partial)
        return m.b(inner(m.a(x))) + m.held["deep"][0]

    model, inputs = on(forward)
    model.held = {"deep": [torch.ones(8)]}
    return model, inputs


@exported
def index_by_a_number_in_a_tensor() -> Made:
    return on(lambda m, x: m.a(x)[:, torch.tensor(1, device=x.device)] + m.b(x)[:, 0])


@followed
def swallowed_error_of_its_own() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ZeroDivisionError):
            return m.a(x) / (1 // 0)
        return m.b(x)

    return on(forward)


@followed
def threads_of_state_in_a_class() -> Made:
    class Chooser(nn.Module):
        turn = 0

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Chooser.turn = (Chooser.turn + 1) % 2
            return self.a(x).relu() if Chooser.turn else self.a(x) * 3

    return on(lambda m, x: m.d(m.c(x)), c=Chooser(), d=Chooser())


@followed
def frozen_weights_and_detached_results() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x).detach()) + m.a(x))
    model.a.weight.requires_grad_(False)
    return model, inputs


@followed
def weight_written_in_forward() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            m.a.weight.clamp_(-1, 1)
            m.b.weight.mul_(0.5).add_(m.a.weight)
        return m.b(m.a(x))

    return on(forward)


@torch.library.custom_op("pipecut_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _halved(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Unpriced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = halved(self.a(x))
        return torch.special.bessel_j0(y)


@followed
def operators_without_a_formula() -> Made:
    return Unpriced(), (torch.empty(2, 8),)


@exported
def loop_over_a_region() -> Made:
    from torch._higher_order_ops.while_loop import while_loop

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, m.a(y)), (torch.zeros(()), x))[1]

    return on(forward)


@exported
def compiled_part() -> Made:
    return on(lambda m, x: m.b(torch.compile(m.a)(x)))


@exported
def lazy_weights() -> Made:
    return on(lambda m, x: m.b(m.c(x)), c=nn.LazyLinear(8))


@exported
def subclass_of_a_tensor() -> Made:
    class Own(torch.Tensor):
        pass

    return on(lambda m, x: m.b(m.a(x).as_subclass(Own) * 2).as_subclass(torch.Tensor))


@exported
def sparse_results() -> Made:
    return on(lambda m, x: m.b(m.a(x).to_sparse().to_dense()))


@followed
def results_into_given_tensors() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        with torch.no_grad():
            torch.add(x, m.a(x), out=out)
            torch.mul(out, 2, out=out[:, :8])
        return m.b(out)

    return on(forward)


@exported
def inference_inside() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = m.a(x).relu()
        return m.b(x) * 2 + y.clone()

    return on(forward)


@exported
def data_replaced() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x) * 1
        y.data = m.b(x).detach()
        return m.b(y)

    return on(forward)


@followed
def set_to_other_memory() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.empty(2, 8, device=x.device)
            y.set_(m.a(x))
        return m.b(y + 1)

    return on(forward)


@followed
def function_compiled_before() -> Made:
    compiled = torch.compile(lambda x: x.relu() * 2, backend="eager")
    return on(lambda m, x: m.b(compiled(m.a(x))))


@followed
def module_compiled_in_place() -> Made:
    model, inputs = on(lambda m, x: m.b(m.a(x)))
    model.a.compile(backend="eager")
    return model, inputs


@followed
def scripted_function() -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        doubled: Any = torch.jit.trace(lambda x: x * 2, torch.ones(2, 8, device="cpu"))
    return on(lambda m, x: m.b(doubled(m.a(x))))


@followed
def complex_numbers() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_complex(m.a(x).view(2, 4, 2))
        turns = torch.polar(torch.ones(4, device=x.device), torch.arange(4.0, device=x.device))
        return m.b(torch.view_as_real(y * turns).flatten(1)) + torch.fft.rfft(x).abs().sum(-1, keepdim=True)

    return on(forward)


@followed
def scattered_and_gathered() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        index = y.argsort(-1)
        z = torch.zeros_like(y).scatter_add_(1, index, y).masked_fill(y > 0, 0.0)
        z.index_add_(0, torch.arange(2, device=x.device), m.b(x))
        return torch.where(y > z, y, z).gather(1, index).cumsum(-1)

    return on(forward)


@followed
def resized_pictures() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.interpolate(m.c(x), scale_factor=2, mode="nearest")
        z = functional.interpolate(y, size=(6, 6), mode="bilinear", align_corners=False)
        pooled = functional.adaptive_avg_pool2d(functional.pad(z, (1, 1, 1, 1)), 2)
        return m.d(pooled).flatten(1)

    return on(forward, (2, 3, 8, 8), c=nn.Conv2d(3, 4, 3), d=nn.ConvTranspose2d(4, 2, 2))


@exported
def layers_dropped_at_random() -> Made:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layerdrop, self.a = 0.5, nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.rand([], device="cpu").item() < self.layerdrop else self.a(x)

    return on(lambda m, x: m.c(x), c=Dropping())


@followed
def operators_that_an_export_runs_in_python() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        classes = functional.one_hot(m.a(x).argmax(-1), 8).to(x.dtype)
        shrunk = functional.hardshrink(m.b(x)) + functional.softshrink(classes)
        one, two = torch.broadcast_tensors(shrunk[:, None], x[:, :, None].mT)
        three = torch.matmul(one.expand(2, 3, 8), two.mT) @ m.a.weight[:1]
        sound = torch.stft(x, 4, 2, window=torch.ones(4, device=x.device), return_complex=True)
        return three.sum(1) + torch.view_as_real(sound).flatten(1)[:, :8]

    return on(forward)


@followed
def operand_read_beside_what_returns_it() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        z = m.c(y)
        same = z.contiguous().to(z.dtype).expand(2, 8).view(2, 8)
        return m.b(z).relu() + y + same + functional.dropout(z, 0.0) + z

    return on(forward, c=nn.Dropout(0.0))


@exported
def operators_of_another_thread() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(torch.relu, x).result()
        return m.b(m.a(x) + y)

    return on(forward)


@exported
def operators_behind_the_back_of_all_modes() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with _disable_current_modes():
            y = torch.relu(x)
        return m.b(m.a(x) + y)

    return on(forward)


@exported
def gradients_of_torch_inside_forward() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        (force,) = torch.autograd.grad(m.b(y).pow(2).sum(), y, create_graph=True)
        return y - force

    return on(forward)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Listening(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@followed
def modes_of_its_own() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with Watching():
            y = m.a(x).relu()
        with Listening():
            return m.b(y) + m.a(x)

    return on(forward)


@followed
def forks() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.jit.wait(torch.jit.fork(torch.relu, m.a(x))) + m.b(x)

    return on(forward)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@followed
def named_and_nested_inputs_and_results() -> Made:
    def forward(m: Any, x: Any, factor: Any = 3, missing: Any = None) -> Pair:
        assert missing is None
        return Pair(m.a(x["left"][0]) * factor, m.b(x["right"]))

    model, _ = on(forward)
    return model, ({"left": [torch.empty(2, 8)], "right": torch.empty(8, 2).t()}, 2, None)


@followed
def numbers_drawn_at_random() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x) + torch.empty_like(x).uniform_() + torch.rand(8, device=x.device)
        return m.b(m.a(x) + noise) * torch.bernoulli(x.sigmoid())

    return on(forward)


@followed
def functions_of_shapes_alone() -> Made:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        torch._check(columns > rows)
        places = torch.arange(columns, device=x.device).expand(rows, -1)
        return m.a(x) * places.to(x.dtype) + m.b(x).new_tensor(list(range(columns)))

    return on(forward)
