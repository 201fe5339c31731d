"""Compiled results beside eager's: what is noise and what is not."""

from __future__ import annotations

import pytest
import torch

import magneto
from magneto._debug import names, same


def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.softmax(x @ w, -1)
    return y, y.argmax(-1)


def inputs(gradients: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(64, 96, requires_grad=gradients), torch.randn(96, 96, requires_grad=gradients)]


def test_the_same_is_the_same() -> None:
    assert names.same_two_models(model, model, inputs())


def test_another_order_of_operations_is_noise() -> None:
    def other(x, w):
        parts = [x[:, i : i + 8] @ w[i : i + 8] for i in range(0, 96, 8)]
        y = torch.softmax(sum(parts), -1)
        return y, y.argmax(-1)

    assert names.same_two_models(model, other, inputs())


def _one_element(y, other):
    y = y.clone()
    y[3, 5] = other
    return y


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda y: y * 1.0001, same.NUMERICS),
        (lambda y: y + 1, same.WRONG),
        (lambda y: _one_element(y, 0.5), same.WRONG),
        (lambda y: _one_element(y, float("nan")), same.NAN),
        (lambda y: y.double(), same.STRUCTURE),
        (lambda y: y[:3], same.STRUCTURE),
    ],
)
def test_what_is_no_noise(change, kind) -> None:
    def other(x, w):
        y, index = model(x, w)
        return change(y), index

    found = same.differences(model, other, inputs(gradients=False))
    assert [difference.kind for difference in found] == [kind]
    assert found[0].where == "result 0" and str(found[0])


def test_what_overflows_in_eager_may_come_to_infinity_or_to_nan() -> None:
    def model(x):
        return (x * 4 - x * 3,)

    def other(x):
        return (torch.where(x > 1e30, torch.inf, x),)

    assert not same.differences(model, other, [torch.tensor([2e38, 1.0])])
    assert same.differences(model, lambda x: (x * torch.inf,), [torch.tensor([2.0, 1.0])])


def test_integers_that_are_not_close_to_a_border() -> None:
    def other(x, w):
        y, index = model(x, w)
        return y, index + 1

    assert not names.same_two_models(model, other, inputs())
    assert names.same_two_models(model, other, inputs(), ignore_non_fp=True)


def test_a_wrong_gradient_is_found_though_the_forward_is_right() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 1.01

    def other(x, w):
        return model(Wrong.apply(x), w)

    found = same.differences(model, other, inputs())
    assert {difference.where for difference in found} == {"gradient of input 0"}
    assert names.same_two_models(model, other, inputs(), only_fwd=True)


def test_parameters_of_a_module_have_gradients() -> None:
    module = torch.nn.Linear(4, 4)
    found = same.results(module, [torch.randn(2, 4)])
    assert set(found) == {"result 0", "gradient of weight", "gradient of bias"}


def test_random_numbers_are_the_same() -> None:
    def draws(x):
        return torch.dropout(x, 0.5, True)

    assert names.same_two_models(draws, draws, [torch.randn(100)])


def test_low_precision_is_measured_by_its_own_noise() -> None:
    def f(x):
        return (x @ x).relu()

    def fused(x):
        return (x.float() @ x.float()).relu().bfloat16()

    assert names.same_two_models(f, fused, [torch.randn(64, 64).bfloat16()])


def test_cast_to_fp64() -> None:
    cast, (x, n) = same.cast_to_fp64(torch.nn.Linear(2, 2), [torch.randn(1, 2, requires_grad=True), 3])
    assert cast.weight.dtype == x.dtype == torch.float64 and x.requires_grad and n == 3


def test_a_backend_whose_results_are_wrong() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x.sin())
    assert names.backend_accuracy_fails(graph, [torch.randn(3)], lambda gm, inputs: lambda x: (x.cos(),))
    assert not names.backend_accuracy_fails(graph, [torch.randn(3)], lambda gm, inputs: lambda x: (x.sin(),))
    assert not names.backend_accuracy_fails(graph, [torch.randn(3)], lambda gm, inputs: 1 / 0)


def test_copies_of_what_shares_memory_with_itself() -> None:
    for x in (torch.randn(3, 1).expand(3, 4), torch.randn(1).expand(2, 3), torch.arange(9.0).unfold(0, 3, 1)):
        (copied,) = same.clone_inputs([x])
        assert torch.equal(copied, x) and copied.data_ptr() != x.data_ptr()
        assert copied.stride() == x.stride() or x.stride() == (1, 1)


def test_what_draws_is_measured_by_what_a_last_place_changes() -> None:
    """The gradient of `k`'s bias is zero but for rounding."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = torch.softmax(self.q(x) @ self.k(x).mT, -1)
            return torch.dropout(scores, 0.1, True) @ x

    class Other(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            k = self.k(x)
            scores = torch.softmax(self.q(x) @ torch.cat([k[:, 8:], k[:, :8]], 1).roll(8, 1).mT * 1.0, -1)
            return (torch.dropout(scores, 0.1, True).mT.contiguous().mT) @ x

    class Wrong(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 1.001

    x = torch.randn(12, 16)
    assert not same.differences(Attention(), Other(), [x])
    assert same.differences(Attention(), Wrong(), [x])


def test_what_a_last_place_moves_as_far_is_no_alarm() -> None:
    """Eager is exact here by luck: the factor is a power of two."""
    x = torch.linspace(0.5, 1.0, 100)

    def other_order(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * (1 + 2**-23) * 1024)

    assert same.differences(lambda x: torch.sin(x * 1024), other_order, [x]) == []
    assert same.differences(lambda x: torch.sin(x), lambda x: torch.sin(x) + 1e-4, [x])


def test_a_gradient_that_is_zero_but_for_rounding() -> None:
    """Of a bias before a softmax: eager's error is luck, so eager runs on inputs nearby, too."""

    def model(x, bias):
        return torch.softmax(x + bias, -1)

    def other(x, bias):
        y = torch.exp(x + bias - (x + bias).amax(-1, keepdim=True).detach())
        return y / y.sum(-1, keepdim=True)

    torch.manual_seed(0)
    for rows in (3, 30, 300):
        given = [torch.randn(rows, 64), torch.randn(64, 1).expand(64, 64)[0].clone().requires_grad_()]
        assert not same.differences(model, other, given)


def test_dropout_is_compared_with_float64() -> None:
    """Its masks are the same in each dtype."""

    def model(x):
        return torch.nn.functional.dropout(x, 0.5).sum(0)

    def other(x):
        return torch.nn.functional.dropout(x, 0.5).view(64, 64, 4).sum(1).sum(0)

    assert not same.differences(model, other, [torch.full((4096, 4), 0.1)])
    found = same.differences(model, lambda x: other(x) * 1.0001, [torch.full((4096, 4), 0.1)])
    assert [difference.kind for difference in found] == [same.NUMERICS]


def test_writes_through_data() -> None:
    """They leave no trace in the version: the values tell. A write that changes none is none."""

    def model(x):
        x.data.clamp_(-10, 10)
        x.data.mul_(2)
        return x + 1

    assert not same.differences(model, lambda x: x.mul_(2) + 1, [torch.ones(3)])
    assert same.differences(model, lambda x: x * 2 + 1, [torch.ones(3)])
    assert not same.differences(lambda x: x + 1, lambda x: x.clamp_(-10, 10) + 1, [torch.ones(3)])


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_scripted_functions_are_not_copied() -> None:
    @torch.jit.script
    def scripted(x):
        return x.sin()

    modules = []

    def backend(module, inputs):
        modules.append(module)
        return module

    x = torch.ones(3)
    magneto.compile(lambda x: scripted(x) * 2, backend=backend)(x)
    torch.testing.assert_close(same.copy_of(modules[0])(x)[0], x.sin() * 2)
    assert not same.differences(modules[0], modules[0], [x])
