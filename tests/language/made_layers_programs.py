"""Parameters, buffers and layers made inside: initialised, trained, handed on, registered in modules from outside."""

from __future__ import annotations

import copy
from typing import Any

import torch
from programs import Programs
from torch import nn
from torch.nn import functional as F

programs = Programs()


def rows(count: int = 3) -> torch.Tensor:
    return torch.arange(4.0 * count).reshape(count, 4) / 7


TWICE = (lambda: (rows(),),) * 2
SIZES = tuple(lambda count=count: (rows(count),) for count in (2, 3, 5))


# -- parameters and buffers -----------------------------------------------------------------------------------------------


@programs(*TWICE)
def parameter_is_given_back(x):
    weight = nn.Parameter(torch.ones(4))
    return weight, x * weight, isinstance(weight, nn.Parameter), isinstance(x, nn.Parameter), weight.is_leaf


@programs(*TWICE)
def parameter_of_an_argument_shares_its_memory(x):
    weight, part = nn.Parameter(x), nn.Parameter(x[1], requires_grad=False)
    with torch.no_grad():
        weight.mul_(2)
    return weight, x, weight + 0, part


@programs(*TWICE)
def parameter_without_gradients(x):
    with torch.no_grad():
        inside = nn.Parameter(torch.ones(4))
    frozen = nn.Parameter(torch.ones(3, dtype=torch.long), requires_grad=False)
    try:
        nn.Parameter(torch.ones(3, dtype=torch.long))
    except RuntimeError as error:
        return inside, frozen, str(error)


@programs(*TWICE)
def parameter_of_a_parameter(x):
    first = nn.Parameter(torch.ones(4))
    second, copied = nn.Parameter(first, requires_grad=False), copy.deepcopy(first)
    return first, second, copied, first is second, {first: 1}[first], any(p is copied for p in (first, second))


@programs(*TWICE)
def buffer_is_made(x):
    buffer = nn.Buffer(torch.ones(4))
    return buffer, x * buffer, isinstance(buffer, nn.Buffer), buffer.persistent


@programs(*SIZES)
def parameter_of_the_size_of_an_argument(x):
    weight = nn.Parameter(torch.ones(x.shape[0], 1))
    (x * weight).sum().backward()
    return weight, weight.grad


@programs(*TWICE)
def parameter_is_trained_by_hand(x):
    weight = nn.Parameter(torch.ones(4))
    for _ in range(3):
        loss = ((x * weight).sum(1) - 1).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
        weight.grad = None
    return weight, loss


@programs(*TWICE)
def parameters_inside_transforms(x):
    def scaled(row):
        return row * nn.Parameter(torch.ones(4))

    gradient = torch.func.grad(lambda y: (y * nn.Parameter(torch.ones(4))).sum())(x)
    return torch.vmap(scaled)(x), torch.vmap(nn.Linear(4, 2))(x), gradient


@programs(*TWICE)
def layer_is_made_for_all_rows(x):
    return torch.vmap(lambda row: nn.Linear(4, 2)(row), randomness="same")(x)


# -- layers ---------------------------------------------------------------------------------------------------------------


@programs(*TWICE)
def layer_is_used_once(x):
    return nn.Linear(4, 3)(x), torch.rand(1)


@programs(*TWICE)
def layer_is_given_back(x):
    layer = nn.Linear(4, 3)
    return layer(x), layer, dict(layer.named_parameters())


@programs(*TWICE)
def layers_of_many_kinds(x):
    table, norm = nn.Embedding(5, 4), nn.BatchNorm1d(4)
    y = norm(x + table(torch.tensor([1, 2, 4])))
    y = nn.GroupNorm(2, 4)(nn.LayerNorm(4)(y)) + nn.RMSNorm(4)(y)
    y = nn.Conv1d(3, 2, 3, padding=1)(y[None])
    return nn.PReLU()(y), nn.Bilinear(4, 4, 2)(x, x + 1), norm.running_mean, norm.num_batches_tracked


@programs(*TWICE)
def recurrent_layers_and_attention(x):
    rows = x[None]
    gates, _ = nn.GRU(4, 5, batch_first=True)(rows)
    cells, (hidden, _) = nn.LSTM(4, 5, num_layers=2)(x[:, None])
    seen, weights = nn.MultiheadAttention(4, 2, batch_first=True)(rows, rows, rows)
    return gates, cells, hidden, seen, weights


@programs(*TWICE)
def layer_has_gradients(x):
    layer = nn.Linear(4, 2)
    layer(x).pow(2).sum().backward()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    return layer.weight.grad, layer.bias.grad, norm


@programs(*TWICE)
def layer_is_trained_by_an_optimizer(x):
    layer = nn.Linear(4, 2)
    groups = [{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss = layer(x).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss, layer.weight.detach().clone()


@programs(*SIZES)
def layer_of_the_size_of_an_argument(x):
    layer = nn.Linear(x.shape[1], x.shape[0])
    return layer(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.scale = nn.Parameter(torch.randn(width))
        self.register_buffer("count", torch.zeros(()))
        nn.init.xavier_uniform_(self.inner[0].weight)
        nn.init.zeros_(self.inner[0].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.inner(x) * self.scale + self.count


@programs(*TWICE)
def module_of_the_program(x):
    block = Block(4)
    return block(x), block, [name for name, _ in block.named_parameters()], block.state_dict()


@programs(*TWICE)
def state_is_loaded(x):
    first, second = Block(4), Block(4)
    answer = second.load_state_dict(first.state_dict())
    return first(x), second(x), answer


@programs(*TWICE)
def weights_are_tied(x):
    table, head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    head.weight = table.weight
    head(table(torch.tensor([1, 2]))).sum().backward()
    return head.weight is table.weight, table.weight.grad, len(list(nn.ModuleList([table, head]).parameters()))


@programs(*TWICE)
def lists_and_dicts_of_parameters(x):
    weights = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in range(3)])
    named = nn.ParameterDict({"a": nn.Parameter(torch.ones(4)), "b": torch.zeros(4)})
    for weight in weights:
        x = x * weight + 1
    for layer in nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]):
        x = layer(x)
    return x * named["a"] + named["b"], list(named), len(weights)


@programs(*TWICE)
def layer_is_frozen_moved_and_copied(x):
    layer = nn.Linear(4, 4).requires_grad_(False).to(x.device).float()
    other = copy.deepcopy(layer)
    return layer(x) + other(x), other.weight is layer.weight, other.weight


@programs(*TWICE)
def modules_own_errors(x):
    class Early(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 4)

    try:
        Early()
    except AttributeError as error:
        return str(error)


# -- registered in what is from outside -----------------------------------------------------------------------------------


@programs.made(*TWICE * 2)
def layer_is_made_at_the_first_call():
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer: Any = None
            self.weight: Any = None

        def forward(self, x):
            if self.layer is None:
                self.layer = nn.Linear(4, 4)
            if self.weight is None:
                self.weight = nn.Parameter(torch.randn(4))
            return self.layer(x) * self.weight, list(self._modules), list(self._parameters)

    return Lazy()


@programs.made(*TWICE * 2)
def parameters_and_layers_are_replaced():
    model = nn.Module()
    model.weight, model.first, model.second = nn.Parameter(torch.ones(4)), nn.Linear(4, 4), nn.Linear(4, 4)

    def program(x):
        y = model.first(x) * model.weight
        model.weight = nn.Parameter(model.weight.detach() * 2)
        model.first, model.second = model.second, nn.Linear(4, 4)
        model.second.weight = model.first.weight
        return y, model.first(x) * model.weight, model.second.weight is model.first.weight

    return program


@programs.made(*TWICE)
def buffers_are_registered():
    model = nn.Module()
    model.register_buffer("known", torch.zeros(4))

    def program(x):
        if not hasattr(model, "scale"):
            model.scale = nn.Buffer(torch.ones(4), persistent=False)
            model.register_buffer("shift", x[0] * 2)
            model.register_parameter("weight", nn.Parameter(torch.ones(4)))
        model.scale.add_(1)
        model.known = model.known + 1
        return x * model.scale + model.shift * model.weight, list(model._buffers), list(model.state_dict())

    program.watched = (model,)
    return program


@programs.made(*TWICE)
def parameter_is_removed_or_refused():
    model = nn.Linear(4, 4)

    def program(x):
        try:
            model.weight = x
        except TypeError as error:
            said = str(error)
        bias = model.bias
        del model.bias
        model.bias = nn.Parameter(bias.detach() + 1)
        y = model(x)
        model.bias = None
        z = model(x)
        model.bias = bias
        return y, z, said, list(model._parameters)

    return program


@programs.made(*TWICE * 2)
def lists_of_layers_grow():
    layers, weights = nn.ModuleList([nn.Linear(4, 4)]), nn.ParameterList([nn.Parameter(torch.ones(4))])

    def program(x):
        layers.append(nn.Linear(4, 4))
        weights.append(nn.Parameter(torch.randn(4)))
        for layer, weight in zip(layers, weights, strict=True):
            x = layer(x) * weight
        return x, len(layers), len(weights)

    return program


@programs.made(*TWICE)
def optimizer_gets_another_parameter():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program(x):
        weight = nn.Parameter(torch.ones(4))
        optimizer.add_param_group({"params": [weight]})
        optimizer.zero_grad()
        (model(x) * weight).sum().backward()
        optimizer.step()
        return weight, len(optimizer.param_groups)

    program.watched = (model,)
    return program


@programs.made(*TWICE)
def registrations_are_seen_by_hooks():
    seen: list[str] = []

    def program(x):
        hook = nn.modules.module.register_module_parameter_registration_hook(lambda m, name, p: seen.append(name))
        try:
            layer = nn.Linear(4, 4)
        finally:
            hook.remove()
        return layer(x), list(seen)

    return program


@programs.made(*TWICE)
def weights_come_of_another_network():
    maker = nn.Linear(4, 15)

    def program(x):
        made = maker(x.mean(0))
        layer = nn.Linear(4, 3)
        y = torch.func.functional_call(layer, {"weight": made[:12].view(3, 4), "bias": made[12:]}, (x,))
        del layer.weight, layer.bias
        layer.weight, layer.bias = made[:12].view(3, 4) * 2, made[12:]
        return y, layer(x)

    return program


@programs.made(*TWICE)
def inner_loop_of_meta_learning():
    outer = nn.Linear(4, 4)

    def program(x):
        inner = nn.Linear(4, 4)
        weights = dict(inner.named_parameters())
        loss = torch.func.functional_call(inner, weights, (outer(x),)).pow(2).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), gradients, strict=True)}
        F.mse_loss(torch.func.functional_call(inner, moved, (outer(x),)), x).backward()
        gradient, outer.weight.grad = outer.weight.grad, None
        outer.bias.grad = None
        return gradient, inner.weight.grad

    return program


# -- another dtype, other data, parametrizations, lazy layers ---------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


class Halved(nn.Module):
    def forward(self, x):
        return x / 2

    def right_inverse(self, x):
        return x * 2


@programs(*TWICE)
def layers_of_another_dtype(x):
    layer = nn.Linear(4, 4)
    weight = layer.weight
    layer = layer.double()
    norm = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)
    half = nn.Linear(4, 2).half()
    same = weight is layer.weight
    return layer(x.double()), same, norm(x.bfloat16()).float(), half.weight.dtype, norm[1].running_mean.dtype, weight


@programs(*TWICE)
def a_converted_layer_is_given_back(x):
    layer = nn.Linear(4, 4).double()
    return layer, [p.is_leaf for p in layer.parameters()], layer.to(torch.float32)(x)


@programs(*TWICE)
def tied_weights_are_converted(x):
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    both = nn.Sequential(first, second).double()
    return both(x.double()), first.weight is second.weight, len(list(both.parameters()))


@programs(*TWICE)
def data_of_made_parameters_is_set(x):
    layer = nn.Linear(4, 4)
    layer.weight.data = torch.eye(4) * 2
    layer.bias.data = x[0]
    wide = nn.Parameter(torch.zeros(2))
    wide.data = torch.ones(3, 4)
    before = layer(x)
    y = torch.ones(4)
    other = nn.Parameter(torch.zeros(1))
    other.data = y
    y.add_(1)
    return before, wide, wide.shape, other, x * other


@programs(*TWICE, breaks=True)
def data_is_set_behind_a_use(x):
    weight = nn.Parameter(torch.ones(4))
    y = x * weight
    weight.data = torch.zeros(3, 4)
    return y, x * weight


@programs(*TWICE)
def data_that_does_not_fit(x):
    weight = nn.Parameter(torch.ones(4))
    weight.data = torch.zeros(3)
    try:
        x * weight
    except RuntimeError:
        return x * 2, weight
    return x


@programs(*TWICE)
def trains_a_converted_layer(x):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).double()
    loss = layer(x.double()).sum()
    loss.backward()
    return layer.weight.grad, layer.bias.grad


@programs(*SIZES)
def drawn_until_it_fits(x):
    torch.manual_seed(3)
    layer = nn.Linear(4, 4)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.trunc_normal_(layer.bias, mean=1.0, std=2.0, a=0, b=1)
    return layer(x), nn.init.trunc_normal_(torch.empty_like(x), std=1.5), torch.rand(2), layer.weight


@programs(*TWICE, breaks=True)
def drawn_into_a_part(x):
    torch.manual_seed(3)
    w = torch.zeros(4, 6)
    nn.init.trunc_normal_(w[:, :3])
    return w, torch.rand(1), nn.init.trunc_normal_(torch.zeros(3, dtype=torch.float64), generator=torch.Generator())


@programs(*TWICE)
def drawn_for_an_argument(x):
    torch.manual_seed(1)
    y = nn.init.trunc_normal_(x, std=0.5)
    return y is x, x, y + 1


@programs(*TWICE)
def parametrized_inside(x):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer(x), nn.utils.parametrize.is_parametrized(layer), type(layer).__name__


@programs(*TWICE)
def parametrized_by_an_inverse(x):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Halved())
    return layer(x), layer.parametrizations.weight.original, sorted(dict(layer.named_parameters()))


@programs(*TWICE)
def spectrally_normed(x):
    torch.manual_seed(0)
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))(x)


@programs(*TWICE)
def normed_by_weight(x):
    torch.manual_seed(0)
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))(x)


@programs(*TWICE, breaks=True)
def weight_normed(x):
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    nn.utils.parametrize.remove_parametrizations(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "weight")
    return layer(x)


@programs(*TWICE, breaks=True)
def lazy_layers_inside(x):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    return layer(x), type(layer[0]).__name__


@programs.made(*TWICE, *TWICE, breaks=True)
def lazy_layers_from_outside():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))

    def program(x):
        return layer(x), type(layer[0]).__name__

    return program
