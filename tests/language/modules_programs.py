"""nn.Module in full: containers, hooks of all kinds, buffers, parametrisations, weight norm, lazy modules, attributes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from programs import Programs, vector
from torch import nn
from torch.nn.utils import parametrizations, parametrize

programs = Programs()
TWICE = (lambda: (vector(),),) * 2
ROWS = (lambda: (vector().reshape(2, 3),),) * 2


# -- containers -----------------------------------------------------------------------------------------------------------


@programs.made(*ROWS)
def sequential_is_indexed_sliced_and_iterated():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh())

    def program(x):
        y = model[0](x)
        for layer in model[1:3]:
            y = layer(y)
        return model[-1](y), len(model), [type(layer).__name__ for layer in model]

    return program


@programs.made(*ROWS)
def sequential_of_named_modules():
    from collections import OrderedDict

    model = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), act=nn.Tanh()))

    def program(x):
        return model(x), model.first(x), [name for name, _ in model.named_children()]

    return program


@programs.made(*ROWS)
def module_list_and_its_methods():
    layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def program(x):
        for i, layer in enumerate(layers):
            x = layer(x) if i != 1 else x - layer(x)
        return x, len(layers), layers[1] in layers, [type(layer) for layer in layers[::2]]

    return program


@programs.made(*ROWS)
def module_dict_and_its_views():
    parts = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Identity()})

    def program(x):
        total = x
        for name, part in parts.items():
            total = total + part(x) * len(name)
        return total, list(parts.keys()), "a" in parts, "c" in parts, len(list(parts.values()))

    return program


@programs.made(*ROWS)
def parameter_list_and_dict():
    weights = nn.ParameterList([nn.Parameter(torch.full((3,), float(i))) for i in range(3)])
    named = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(2.0)), "shift": nn.Parameter(torch.ones(3))})

    def program(x):
        for weight in weights:
            x = x * weight + weights[-1]
        return (x * named["scale"] + named["shift"]).detach(), sorted(named.keys()), len(weights)

    return program


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3)])})
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        for layer in self.inner["layers"]:
            x = layer(x)
        return x + self.scratch if self.bias is None and self.nothing is None else x


@programs.made(*ROWS * 2)
def names_of_parameters_buffers_and_modules():
    model = Nested()

    def program(x):
        names = [name for name, _ in model.named_parameters()]
        shapes = {name: tuple(value.shape) for name, value in model.named_buffers()}
        kinds = [type(module).__name__ for module in model.modules()]
        total = sum(value.sum() for value in model.parameters())
        return model(x).detach(), names, shapes, kinds, total.detach(), sum(p.numel() for p in model.parameters())

    program.watched = (model.count,)
    return program


@programs.made(*ROWS)
def state_dict_is_read_inside():
    model = Nested().eval()

    def program(x):
        state = model.state_dict()
        return list(state), state["count"] + 1, model(x).detach()

    return program


@programs.made(*ROWS)
def submodule_is_found_by_its_path():
    model = Nested().eval()

    def program(x):
        layer = model.get_submodule("inner.layers.0")
        return layer(x).detach(), model.get_parameter("inner.layers.0.bias").detach() * 2, model.get_buffer("count") + 1

    return program


@programs.made(*[lambda i=i: (vector().reshape(2, 3), i % 2 == 0) for i in range(4)])
def train_and_eval_are_switched_inside():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))

    def program(x, training):
        model.train(training)
        y = model(x)
        return y.detach(), model.training, model[2].training, model[2].running_mean * 1

    return program


@programs.made(*ROWS, breaks=True)
def requires_grad_of_a_module_is_switched():
    model = nn.Linear(3, 3)

    def program(x):
        model.requires_grad_(False)
        y = model(x)
        model.weight.requires_grad_(True)
        return y, y.requires_grad, [p.requires_grad for p in model.parameters()]

    return program


# -- hooks ----------------------------------------------------------------------------------------------------------------


@programs.made(*ROWS * 2)
def forward_pre_hook_changes_the_input():
    model = nn.Linear(3, 3).requires_grad_(False)
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda module, args: (seen.append(len(args)), (args[0] * 2,))[1])

    def program(x):
        return model(x), len(seen)

    program.watched = (seen,)
    return program


@programs.made(*ROWS * 2)
def forward_hook_changes_the_output():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    kept: dict[str, Any] = {}

    def keep(module, args, output):
        kept[type(module).__name__] = output
        return output + 1

    for module in model:
        module.register_forward_hook(keep)

    def program(x):
        y = model(x)
        return y, kept["Linear"] * 2

    program.watched = (kept,)
    return program


@programs.made(*ROWS * 2)
def hooks_with_keyword_arguments():
    class Scaled(nn.Module):
        def forward(self, x, *, scale=1.0):
            return x * scale

    model = Scaled()
    model.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True)
    model.register_forward_hook(lambda m, args, kwargs, out: out + kwargs["scale"], with_kwargs=True)

    def program(x):
        return model(x, scale=2.0)

    return program


@programs.made(*ROWS * 2)
def hooks_run_in_the_order_asked_for():
    model = nn.Identity()
    order: list[str] = []
    model.register_forward_hook(lambda *_: order.append("second"))
    model.register_forward_hook(lambda *_: order.append("first"), prepend=True)
    model.register_forward_pre_hook(lambda *_: order.append("before"))

    def program(x):
        return model(x) + 1, list(order)

    program.watched = (order,)
    return program


@programs.made(*ROWS * 2)
def hook_that_runs_whatever_happens():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    model = Failing()
    seen: list[str] = []
    model.register_forward_hook(lambda m, args, out: seen.append(str(out)), always_call=True)

    def program(x):
        try:
            return model(x)
        except ValueError as error:
            return x + 1, str(error)

    program.watched = (seen,)
    return program


@programs.made(*ROWS * 3, breaks=True)
def hook_is_removed_between_and_inside_calls():
    model = nn.Identity()
    seen: list[int] = []
    handles = [model.register_forward_hook(lambda *_, i=i: seen.append(i)) for i in range(2)]

    def program(x):
        y = model(x) + len(seen)
        if handles:
            handles.pop().remove()
        return y

    program.watched = (seen,)
    return program


@programs.made(*ROWS * 2, breaks=True)
def hook_is_registered_inside():
    model = nn.Linear(3, 3).requires_grad_(False)

    def program(x):
        handle = model.register_forward_hook(lambda module, args, output: output * 2)
        y = model(x)
        handle.remove()
        return y, model(x)

    return program


@programs.made(*ROWS * 2, breaks=True)
def hook_for_all_modules():
    seen: list[str] = []
    model = nn.Sequential(nn.Identity(), nn.ReLU())

    def program(x):
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__))
        try:
            return model(x) + len(seen)
        finally:
            handle.remove()

    program.watched = (seen,)
    return program


@programs.made(*ROWS * 2, breaks=True)
def backward_hooks_see_gradients():
    model = nn.Linear(3, 1)
    seen: list[Any] = []
    model.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append(grad_out[0].sum().item()))

    def program(x):
        model.zero_grad()
        model(x).sum().backward()
        return model.weight.grad.clone(), len(seen)

    program.watched = (seen,)
    return program


@programs.made(*ROWS * 2, breaks=True)
def tensor_hook_changes_the_gradient():
    weight = torch.ones(3, requires_grad=True)

    def program(x):
        y = x * weight
        y.register_hook(lambda gradient: gradient * 10)
        (gradient,) = torch.autograd.grad(y.sum(), weight)
        return gradient

    return program


# -- buffers and attributes that forward writes -------------------------------------------------------------------------


class Averaging(nn.Module):
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.steps = 0
        self.history: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        self.last = x * self.steps
        self.history.append(self.average)
        return self.last + self.average


@programs.made(*ROWS * 2)
def buffer_is_replaced_and_attributes_are_set():
    model = Averaging()

    def program(x):
        y = model(x)
        return y, model.steps, model.last is y, dict(model.named_buffers())["average"] is model.average

    program.watched = (model.history,)
    return program


@programs.made(*ROWS)
def buffer_is_changed_in_place_and_copied():
    model = nn.BatchNorm1d(3, affine=False)

    def program(x):
        before = model.running_mean.clone()
        y = model(x)
        model.running_var.copy_(model.running_mean)
        return y, before, model.num_batches_tracked + 0, model.running_var

    return program


@programs.made(*ROWS)
def parameter_is_replaced():
    model = nn.Linear(3, 3)

    def program(x):
        model.weight = nn.Parameter(torch.eye(3), requires_grad=False)
        y = model(x)
        return y.detach(), isinstance(model.weight, nn.Parameter), list(model._parameters)

    return program


@programs.made(*ROWS)
def plain_tensor_in_place_of_a_parameter_is_refused():
    model = nn.Linear(3, 3)

    def program(x):
        try:
            model.weight = torch.eye(3)
        except TypeError as error:
            return x + 1, str(error)

    return program


@programs.made(*ROWS)
def module_and_buffer_are_added_inside():
    model = nn.Module()

    def program(x):
        model.scale = nn.Identity()
        model.register_buffer("offset", torch.ones(3))
        model.add_module("act", nn.ReLU())
        y = model.act(model.scale(x) + model.offset)
        names = [name for name, _ in model.named_modules()], list(model._buffers)
        del model.act, model.offset
        return y, names, hasattr(model, "act"), list(model._modules)

    return program


@programs.made(*ROWS)
def missing_attribute_of_a_module():
    model = nn.Linear(3, 3)

    def program(x):
        try:
            return model.wieght
        except AttributeError as error:
            return x * 2, str(error)[:40], getattr(model, "gain", 3), hasattr(model, "weight")

    return program


@programs.made(*ROWS)
def module_with_properties_and_class_attributes():
    class Model(nn.Module):
        factor = 2

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

        @property
        def doubled(self):
            return self.weight * self.factor

        def forward(self, x):
            return x * self.doubled

        def extra_repr(self):
            return "no"

    model = Model()

    def program(x):
        model.factor = model.factor + 1
        return model(x), model.factor, Model.factor

    return program


@programs.made(*ROWS)
def parameters_are_shared_between_modules():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.ModuleList([first, second])

    def program(x):
        y = second(first(x)).detach()
        return y, len(list(model.parameters())), first.weight is second.weight

    return program


@programs.made(*ROWS)
def parameter_is_changed_in_place_without_gradients():
    model = nn.Linear(3, 3)

    def program(x):
        before = model(x).detach()
        with torch.no_grad():
            model.weight.mul_(0.5)
            model.bias.zero_()
            model.weight.data.add_(1)
        return before, model(x).detach(), model.weight.detach().clone()

    return program


@programs.made(*ROWS, breaks=True)
def module_is_applied_initialised_and_moved():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def program(x):
        model.apply(lambda m: nn.init.constant_(m.weight, 0.5) if isinstance(m, nn.Linear) else None)
        nn.init.zeros_(model[0].bias)
        model.double()
        y = model(x.double()).detach()
        model.float()
        return y, model[0].weight.dtype

    return program


@programs.made(*ROWS)
def module_is_made_inside():
    def program(x):
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        return layer(x).detach(), tuple(layer.weight.shape), layer.training

    return program


@programs.made(*ROWS, breaks=True)
def module_is_copied_inside():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()

    def program(x):
        other = copy.deepcopy(model)
        return (
            other(x).detach(),
            model(x).detach(),
            other[0].weight is model[0].weight,
            torch.equal(other[0].weight, model[0].weight),
        )

    return program


# -- parametrisations, weight norm, lazy modules ------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu()


@programs.made(*ROWS)
def parametrised_weight():
    model = nn.Linear(3, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())

    def program(x):
        return model(x).detach(), model.weight.detach() - model.weight.detach().T, parametrize.is_parametrized(model)

    return program


@programs.made(*ROWS)
def parametrisation_is_cached():
    model = nn.Linear(3, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())

    def program(x):
        with parametrize.cached():
            first, second = model.weight, model.weight
        return model(x).detach(), first is second

    return program


@programs.made(*ROWS)
def weight_norm_of_both_kinds():
    old = torch.nn.utils.weight_norm(nn.Linear(3, 3))
    new = parametrizations.weight_norm(nn.Linear(3, 3), dim=0)

    def program(x):
        return old(x).detach(), new(x).detach(), tuple(old.weight_g.shape)

    return program


@programs.made(*ROWS * 2)
def spectral_norm_counts_its_iterations():
    model = parametrizations.spectral_norm(nn.Linear(3, 3))

    def program(x):
        y = model(x).detach()
        model.eval()
        z = model(x).detach()
        model.train()
        return y, z

    return program


@programs.made(*ROWS)
def orthogonal_weight():
    model = parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map="cayley")

    def program(x):
        return model(x).detach()

    return program


@programs.made(*ROWS * 2, breaks=True)
def lazy_modules_take_their_size_from_the_first_input():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU())

    def program(x):
        y = model(x).detach()
        return y, type(model[0]).__name__, tuple(model[0].weight.shape)

    return program


# -- modules of PyTorch -----------------------------------------------------------------------------------------------------


@programs.made(*[lambda: (torch.tensor([[1, 2, 0], [3, 1, 1]]),)] * 2)
def embeddings_of_all_kinds():
    plain = nn.Embedding(5, 3, padding_idx=0).requires_grad_(False)
    bag = nn.EmbeddingBag(5, 3, mode="mean").requires_grad_(False)

    def program(x):
        return plain(x), bag(x), nn.functional.one_hot(x, 5)

    return program


@programs.made(*[lambda: (torch.arange(24.0).reshape(2, 4, 3),)] * 2)
def recurrent_modules():
    lstm = nn.LSTM(3, 4, batch_first=True).requires_grad_(False)
    gru = nn.GRUCell(3, 2).requires_grad_(False)

    def program(x):
        y, (h, c) = lstm(x)
        state = torch.zeros(2, 2)
        for step in x.unbind(1):
            state = gru(step, state)
        return y, h, c, state

    return program


@programs.made(*[lambda: (torch.arange(24.0).reshape(2, 4, 3) / 24,)] * 2)
def attention_modules():
    attention = nn.MultiheadAttention(3, 3, batch_first=True).requires_grad_(False)
    layer = nn.TransformerEncoderLayer(3, 1, 8, dropout=0.0, batch_first=True).requires_grad_(False).eval()

    def program(x):
        y, weights = attention(x, x, x, need_weights=True)
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        return y, weights, layer(x, src_mask=mask)

    return program


@programs.made(*[lambda: (torch.arange(32.0).reshape(1, 2, 4, 4) / 32,)] * 2)
def convolutions_and_pooling():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"),
        nn.GroupNorm(2, 4),
        nn.PReLU(),
        nn.MaxPool2d(2, return_indices=False),
        nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(4, 2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Unflatten(1, (1, 2)),
    ).requires_grad_(False)

    def program(x):
        return model(x)

    return program


@programs.made(*ROWS)
def losses_and_distances():
    target = torch.tensor([0, 2])

    def program(x):
        other = x.flip(0)
        return (
            nn.CrossEntropyLoss(label_smoothing=0.1)(x, target),
            nn.MSELoss(reduction="none")(x, other),
            nn.CosineSimilarity()(x, other),
            nn.functional.kl_div(x.log_softmax(1), other.softmax(1), reduction="batchmean"),
            nn.HuberLoss()(x, other),
        )

    return program


@programs.made(*ROWS)
def forward_takes_and_gives_structures():
    class Model(nn.Module):
        def forward(self, batch, *rest, flag=False, **options):
            total = batch["x"] + sum(rest)
            return {"total": total, "pair": (total * 2, [total + 1])}, flag, options

    model = Model()

    def program(x):
        out, flag, options = model({"x": x}, x, x, flag=True, a=1)
        return out, flag, options, out["pair"][1][0].shape

    return program


@programs.made(*ROWS)
def super_call_of_a_modules_forward():
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model = Scaled(3, 3).requires_grad_(False)

    def program(x):
        return model(x), nn.Linear.forward(model, x), model.forward(x)

    return program


@programs.made(*ROWS)
def layers_made_inside():
    class Scaled(nn.Linear):
        def __init__(self, factor):
            super().__init__(3, 3)
            self.factor = factor

        def forward(self, x):
            return super().forward(x) * self.factor

    kept = {}

    def program(x):
        if "head" not in kept:
            kept["head"] = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2), nn.Dropout(0.5))
        y = kept["head"](Scaled(2)(x) + nn.Embedding(4, 3)(torch.tensor([1, 2])))
        return y.detach(), nn.ReLU()(x), torch.rand(1)

    program.watched = (kept,)
    return program
