"""CTC loss in training: the lengths stay tensors, and what is kept has a size that only they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import magneto

TARGETS = torch.tensor([[1, 2, 2, 4], [3, 1, 5, 0], [2, 5, 0, 0]])
WAYS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none", "blank": 5, "zero_infinity": True},
    "infinite": {"zero_infinity": True},
}


def train(function: Any, *args: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 3, 6, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    loss = function(x, *args)
    loss.sum().backward()
    assert x.grad is not None
    return loss.detach(), x.grad


def check(program: Any, backend: str, *all_args: tuple[Any, ...]) -> None:
    compiled = magneto.compile(program, backend=backend)
    for args in all_args:
        for seed in range(2):
            got, want = train(compiled, *args, seed=seed), train(program, *args, seed=seed)
            for left, right in zip(got, want, strict=True):
                if backend == "aot_eager":
                    assert torch.equal(left, right) and left.stride() == right.stride()
                else:
                    torch.testing.assert_close(left, right)
    stats = magneto.stats()
    assert not stats["no_joint"] and not stats["breaks"] and not stats["undone"], stats["break_reasons"]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", WAYS)
def test_lengths_as_tensors(name: str, backend: str) -> None:
    def program(x: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(2), TARGETS, inputs, outputs, **WAYS[name])

    first = (8, 8, 5) if name != "infinite" else (8, 2, 5)
    lengths = [(torch.tensor(first), torch.tensor((4, 3, 2))), (torch.tensor((7, 6, 8)), torch.tensor((2, 2, 1)))]
    check(program, backend, *lengths)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_lengths_as_numbers(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        return F.ctc_loss((x * 2).log_softmax(2), TARGETS, (8, 7, 8), (4, 3, 2)) * 3

    check(program, backend, ())


def test_targets_in_a_row_and_lengths_made_inside() -> None:
    def program(x: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((3,), x.shape[0], dtype=torch.long)
        return F.ctc_loss(x.log_softmax(2), targets, lengths, torch.tensor([4, 3, 2]))

    check(program, "magneto", (torch.tensor([1, 2, 2, 4, 3, 1, 5, 2, 5]),))


def test_one_sequence() -> None:
    def program(x: Tensor) -> Tensor:
        return F.ctc_loss(x[:, 0].log_softmax(1), TARGETS[0], torch.tensor(8), torch.tensor(4))

    check(program, "magneto", ())


def test_a_model_that_is_trained() -> None:
    def losses(compiles: bool) -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6))
        criterion = torch.nn.CTCLoss()

        def loss_of(x: Tensor, targets: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
            loss: Tensor = criterion(net(x).log_softmax(2), targets, inputs, outputs)
            return loss

        step: Any = magneto.compile(loss_of) if compiles else loss_of
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        found = []
        for i in range(6):
            optimizer.zero_grad()
            loss = step(torch.randn(8 + i % 2, 3, 5), TARGETS, torch.tensor([8, 7, 8]), torch.tensor([4, 1 + i % 3, 2]))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(compiles=True) == pytest.approx(losses(compiles=False), rel=1e-5)
    assert not magneto.stats()["no_joint"] and not magneto.stats()["breaks"]


def test_errors_are_eager_s() -> None:
    def program(x: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(2), TARGETS, inputs, outputs)

    for inputs, outputs in (((8, 8), (4, 3, 2)), ((8, 8, 9), (4, 3, 2)), ((8, 8, 8), (5, 3, 2))):
        raised = []
        for function in (program, magneto.compile(program)):
            with pytest.raises(RuntimeError) as error:
                train(function, torch.tensor(inputs), torch.tensor(outputs))
            raised.append(str(error.value).splitlines()[0])
        assert raised[0] == raised[1]


@pytest.mark.parametrize("lengths", [tuple, torch.tensor], ids=["numbers", "tensors"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradcheck(reduction: str, lengths: Any) -> None:
    def program(x: Tensor) -> Tensor:
        inputs, outputs = lengths((4, 3)), lengths((2, 1))
        return F.ctc_loss(x.log_softmax(2), TARGETS[:2], inputs, outputs, reduction=reduction, zero_infinity=True)

    x = torch.randn(4, 2, 6, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(magneto.compile(program), (x,))
    assert not magneto.stats()["no_joint"]


def test_sizes_that_vary() -> None:
    def program(x: Tensor, targets: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(2), targets, inputs, outputs)

    compiled = magneto.compile(program, dynamic=True)
    for times, count in ((8, 2), (9, 3), (12, 4)):
        x = torch.randn(times, count, 6, requires_grad=True)
        args = torch.randint(1, 6, (count, 3)), torch.full((count,), times), torch.full((count,), 3)
        compiled(x, *args).backward()
        got, x.grad = x.grad, None
        program(x, *args).backward()
        torch.testing.assert_close(got, x.grad)
    assert magneto.stats()["joint_graphs"] == 1 and not magneto.stats()["no_joint"]
