"""Programs of the kinds that PyTorch's documents on torch.func and forward-mode AD show."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.autograd.functional as functional
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

torch.manual_seed(0)
ROW, ROWS, SQUARE = torch.randn(5), torch.randn(6, 5), torch.rand(3, 3)
WEIGHT, BIAS = torch.randn(5, 5), torch.randn(5)
TRAINED = torch.randn(5, requires_grad=True)
LINEAR = nn.Linear(5, 5)


def predict(weight: Any, bias: Any, x: Any) -> Any:
    return F.linear(x, weight, bias).tanh()


def first_and_second_derivatives() -> Any:
    return grad(torch.sin)(ROW[0]), grad(grad(torch.sin))(ROW[0])


def model_of_one_example() -> Any:
    def model(features: Any) -> Any:
        assert features.dim() == 1
        return features.dot(TRAINED).relu()

    return vmap(model)(ROWS)


def gradients_per_example() -> Any:
    def loss(weights: Any, example: Any, target: Any) -> Any:
        return (example.dot(weights).relu() - target) ** 2

    return vmap(grad(loss), in_dims=(None, 0, 0))(TRAINED, ROWS, ROWS[:, 0])


def both_products() -> Any:
    value, pull = vjp(torch.sin, ROW)
    return value, pull(ROWS[0]), jvp(lambda x, y: x * y, (ROW, ROWS[0]), (ROWS[1], ROWS[2]))


def jacobians() -> Any:
    last = partial(predict, WEIGHT, BIAS)
    value, pull = vjp(last, ROW)
    by_rows = vmap(pull)(torch.eye(5))
    both = jacrev(predict, argnums=(0, 1))(WEIGHT, BIAS, ROW)
    aux = jacrev(lambda x: (last(x), x.sum()), has_aux=True)(ROW)
    return value, by_rows, jacrev(last)(ROW), jacfwd(predict, argnums=2)(WEIGHT, BIAS, ROW), both, aux


def hessians() -> Any:
    of_rows = vmap(hessian(predict, argnums=2), in_dims=(None, None, 0))
    last = partial(predict, WEIGHT, BIAS)
    return hessian(last)(ROW), jacfwd(jacfwd(last))(ROW), jacrev(jacrev(last))(ROW), of_rows(WEIGHT, BIAS, ROWS)


def jacobian_of_a_batch_by_its_sum() -> Any:
    return jacrev(lambda x: predict(WEIGHT, BIAS, x).sum(0))(ROWS).movedim(1, 0)


def hessian_times_vector() -> Any:
    def f(x: Any) -> Any:
        return x.sin().sum()

    _, pull = vjp(grad(f), ROW)
    return jvp(grad(f), (ROW,), (ROWS[0],))[1], pull(ROWS[0])


def rows_of_a_jacobian_by_autograd() -> Any:
    x = ROW.clone().requires_grad_()
    value = predict(WEIGHT, BIAS, x)
    return torch.stack([torch.autograd.grad(value, x, row, retain_graph=True)[0] for row in torch.eye(5)])


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        return F.log_softmax(self.head(torch.flatten(x, 1)), dim=1)


PICTURES, DATA, TARGETS = Pictures(), torch.randn(4, 1, 8, 8), torch.tensor([0, 2, 1, 1])


def gradients_per_picture() -> Any:
    parameters = {name: value.detach() for name, value in PICTURES.named_parameters()}
    buffers = {name: value.detach() for name, value in PICTURES.named_buffers()}

    def loss(parameters: Any, buffers: Any, picture: Any, target: Any) -> Any:
        predicted = functional_call(PICTURES, (parameters, buffers), (picture.unsqueeze(0),))
        return F.nll_loss(predicted, target.unsqueeze(0))

    return vmap(grad(loss), in_dims=(None, None, 0, 0))(parameters, buffers, DATA, TARGETS)


def gradients_per_picture_one_by_one() -> Any:
    def of_one(picture: Any, target: Any) -> Any:
        loss = F.nll_loss(PICTURES(picture.unsqueeze(0)), target.unsqueeze(0))
        return torch.autograd.grad(loss, list(PICTURES.parameters()))

    return [torch.stack(column) for column in zip(*[of_one(DATA[i], TARGETS[i]) for i in range(4)], strict=True)]


MODELS = [nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(3)]


def ensemble() -> Any:
    parameters, buffers = stack_module_state(MODELS)
    base = copy.deepcopy(MODELS[0]).to("meta")

    def one(parameters: Any, buffers: Any, x: Any) -> Any:
        return functional_call(base, (parameters, buffers), (x,))

    same = vmap(one, in_dims=(0, 0, None))(parameters, buffers, DATA)
    return same, vmap(one, randomness="different")(parameters, buffers, DATA[:3].unsqueeze(1))


NET, FIRST, SECOND = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)), DATA[:3], DATA[2:]


def of_one_picture(parameters: Any, x: Any) -> Any:
    return functional_call(NET, parameters, (x.unsqueeze(0),)).squeeze(0)


def tangent_kernel_of_jacobians() -> Any:
    parameters = {name: value.detach() for name, value in NET.named_parameters()}
    first, second = (
        [jacobian.flatten(2) for jacobian in vmap(jacrev(of_one_picture), (None, 0))(parameters, x).values()]
        for x in (FIRST, SECOND)
    )
    return torch.stack([torch.einsum("Naf,Mbf->NMab", a, b) for a, b in zip(first, second, strict=True)]).sum(0)


def tangent_kernel_of_products() -> Any:
    parameters = {name: value.detach() for name, value in NET.named_parameters()}

    def kernel(x1: Any, x2: Any) -> Any:
        value, pull = vjp(lambda parameters: of_one_picture(parameters, x1), parameters)

        def column(vector: Any) -> Any:
            return jvp(lambda parameters: of_one_picture(parameters, x2), (parameters,), pull(vector))[1]

        return vmap(column)(torch.eye(value.numel(), dtype=value.dtype).view(value.numel(), -1))

    return torch.einsum("NMKK->NM", vmap(vmap(kernel, (None, 0)), (0, None))(FIRST, SECOND))


def inner_loop_of_learning_to_learn() -> Any:
    parameters = {name: value.detach() for name, value in LINEAR.named_parameters()}

    def task(x: Any, y: Any) -> Any:
        found = grad(lambda p: F.mse_loss(functional_call(LINEAR, p, (x,)), y))(parameters)
        updated = {name: parameters[name] - 0.1 * found[name] for name in found}
        return F.mse_loss(functional_call(LINEAR, updated, (x,)), y)

    return vmap(task)(ROWS.view(3, 2, 5), ROWS.view(3, 2, 5).sin()).mean()


def randomness_of_vmap() -> Any:
    def noisy(x: Any) -> Any:
        return x + torch.randn(())

    torch.manual_seed(1)
    return vmap(noisy, randomness="different")(ROW), vmap(noisy, randomness="same")(ROW)


def randomness_that_is_refused() -> Any:
    try:
        vmap(lambda x: x + torch.randn(()))(ROW)
    except RuntimeError as error:
        return str(error)[:40]


def dims_of_vmap() -> Any:
    squares = vmap(lambda x: (x**2, x), out_dims=(0, 1))(ROWS)
    dot = vmap(lambda d: torch.dot(d["x"], d["y"]), in_dims=({"x": 0, "y": None},))({"x": ROWS, "y": ROW})
    return squares, dot, vmap(vmap(torch.mul))(ROWS, ROWS), vmap(lambda x: x.sin().sum(), chunk_size=2)(ROWS)


def values_and_more() -> Any:
    def loss(y: Any, predicted: Any) -> Any:
        value = (0.5 * (y - predicted) ** 2).mean()
        return value, (y, value)

    value, pull, aux = vjp(lambda x: (x.sum(), {"a": x.cos()}), ROW, has_aux=True)
    both = grad_and_value(loss, has_aux=True, argnums=(0, 1))(ROW, ROWS[0])
    return grad(loss, has_aux=True)(ROW, ROWS[0]), both, value, pull(torch.ones(())), aux


def batch_norm_without_statistics() -> Any:
    return vmap(lambda x: functional_call(NORM, dict(NORM.named_parameters()), (x.unsqueeze(0),)))(DATA)


NORM = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU())


def dual_numbers() -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SQUARE, SQUARE.sin())
        return forward_ad.unpack_dual(dual**2 + (SQUARE * 0.5) ** 2).tangent


def dual_parameters() -> Any:
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(p, torch.ones_like(p)) for name, p in LINEAR.named_parameters()}
        return forward_ad.unpack_dual(functional_call(LINEAR, dual, (ROWS,))).tangent


def dual_parameters_set_in_a_module() -> Any:
    parameters = dict(LINEAR.named_parameters())
    with forward_ad.dual_level():
        for name, value in parameters.items():
            delattr(LINEAR, name)
            setattr(LINEAR, name, forward_ad.make_dual(value, torch.ones_like(value)))
        tangent = forward_ad.unpack_dual(LINEAR(ROWS)).tangent
    for name, value in parameters.items():
        delattr(LINEAR, name)
        LINEAR.register_parameter(name, value)
    return tangent


def functions_of_autograd_functional() -> Any:
    def vector(x: Any) -> Any:
        return x.exp().sum(dim=1)

    def scalar(x: Any) -> Any:
        return x.pow(3).sum()

    one = torch.ones(())
    matrices = functional.jacobian(vector, SQUARE), functional.hessian(scalar, SQUARE)
    fast = functional.jacobian(vector, SQUARE, vectorize=True, strategy="forward-mode")
    products = functional.vjp(scalar, SQUARE, one), functional.jvp(vector, SQUARE, SQUARE)
    return matrices, fast, products, functional.hvp(scalar, SQUARE, SQUARE), functional.vhp(scalar, SQUARE, SQUARE)


PROGRAMS = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", None) == __name__
    and hasattr(value, "__code__")
    and value.__code__.co_argcount == 0
    and not name.startswith("_")
]
