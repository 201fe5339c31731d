"""Recurrent layers that train on batches and lengths that vary: the second size makes a program for all that follow."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import magneto

SIZES = [(3, 5), (4, 6), (7, 9), (5, 4), (6, 11), (8, 3), (17, 20), (3, 5), (9, 9), (2, 2)]
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 8),
    "lstm_of_all": lambda: nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True, dropout=0.3),
    "lstm_without_biases": lambda: nn.LSTM(4, 8, 3, bias=False),
    "lstm_that_projects": lambda: nn.LSTM(4, 8, 2, proj_size=3, bidirectional=True),
    "lstm_of_doubles": lambda: nn.LSTM(4, 8, 2, dropout=0.5).double(),
    "lstm_frozen": lambda: nn.LSTM(4, 8, 2, batch_first=True).requires_grad_(False),
    "gru": lambda: nn.GRU(4, 8),
    "gru_of_all": lambda: nn.GRU(4, 8, 2, batch_first=True, bidirectional=True, dropout=0.3),
    "gru_of_doubles": lambda: nn.GRU(4, 8, bias=False).double(),
    "gru_that_does_not_train": lambda: nn.GRU(4, 8, 2, dropout=0.3).eval(),
    "rnn": lambda: nn.RNN(4, 8, 3, bidirectional=True),
    "rnn_relu": lambda: nn.RNN(4, 8, nonlinearity="relu", batch_first=True, bias=False),
}


class Tagger(nn.Module):
    """The state goes from one layer to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTM(4, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        rows, state = self.first(x)
        rows, (h, c) = self.second(rows.transpose(0, 1).tanh(), state)
        return self.head(rows), h.relu() + c


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTMCell(4, 8), nn.GRUCell(8, 8)

    def forward(self, x: Tensor) -> Any:
        state, h = None, torch.zeros(x.shape[1], 8)
        for row in x[:2]:
            state = self.a(row, state)
            h = self.b(state[0], h)
        return h, state


class UnderAutocast(nn.Module):
    """What comes in may be of the narrower dtype already, and weights may be computed from others."""

    def __init__(self, layer: nn.Module, hidden: int = 8) -> None:
        super().__init__()
        self.layer, self.first, self.last = layer, nn.Linear(4, 4), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.in_full(x)

    def in_full(self, x: Tensor) -> Any:
        out, state = self.layer(x)
        again, _ = self.layer(self.first(x))
        return self.last(out), state, again


LAYERS["tagger"], LAYERS["cells"] = Tagger, Cells
LAYERS |= {
    "gru_with_weight_norm": lambda: weight_norm(nn.GRU(4, 8), "weight_hh_l0"),
    "lstm_with_weight_norm": lambda: weight_norm(nn.LSTM(4, 8), "weight_hh_l0"),
}
NARROW: dict[str, Callable[[], nn.Module]] = {
    "lstm_of_bfloat16": lambda: nn.LSTM(4, 8, 2, bidirectional=True).bfloat16(),
    "gru_of_bfloat16": lambda: nn.GRU(4, 8, batch_first=True).bfloat16(),
    "lstm_under_autocast": lambda: UnderAutocast(nn.LSTM(4, 8, 2)),
    "lstm_that_projects_under_autocast": lambda: UnderAutocast(nn.LSTM(4, 8, proj_size=3), 3),
    "gru_under_autocast": lambda: UnderAutocast(nn.GRU(4, 8, 2, bidirectional=True), 16),
    "rnn_under_autocast": lambda: UnderAutocast(nn.RNN(4, 8)),
}


def tensors_in(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [tensor for item in found for tensor in tensors_in(item)]


def train(call: Callable[..., Any], net: nn.Module, x: Tensor, seed: int) -> list[tuple[Tensor, tuple[int, ...]]]:
    """What the layer gives, and all gradients."""
    torch.manual_seed(seed)
    net.zero_grad()
    leaf = x.clone().requires_grad_()
    given = tensors_in(call(leaf))
    sum((k + 1) * tensor.sin().mean() for k, tensor in enumerate(given)).backward()
    gradients = [leaf.grad, *[parameter.grad for parameter in net.parameters()]]
    found = [*[tensor.detach() for tensor in given], *[gradient for gradient in gradients if gradient is not None]]
    return [(tensor, tensor.stride()) for tensor in found]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", LAYERS)
def test_one_program(name: str, backend: str) -> None:
    torch.manual_seed(3)
    net = LAYERS[name]()
    dtype = next(net.parameters()).dtype
    plain = copy.deepcopy(net)
    plain(torch.ones(2, 2, 4, dtype=dtype))  # PyTorch warns once where states are projected
    compiled = magneto.compile(net, backend=backend)
    for seed, sizes in enumerate(SIZES):
        x = torch.randn(*sizes, 4, dtype=dtype)
        torch.testing.assert_close(train(compiled, net, x, seed), train(plain, plain, x, seed))
    stats = magneto.stats()
    assert stats["frames"] == 2 and stats["joint_graphs"] == 2, stats
    assert not stats["breaks"] and not stats["no_joint"] and not stats["undone"], stats


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", NARROW)
@torch.backends.mkldnn.flags(enabled=False)
def test_one_program_of_narrow_floats(name: str, backend: str) -> None:
    """Each result is in the mean at most twice as far from float64's as eager's. Without oneDNN, whose LSTM has these
    floats on some machines only."""
    torch.manual_seed(3)
    net = NARROW[name]()
    dtype = next(net.parameters()).dtype
    plain, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    plain(torch.ones(2, 2, 4, dtype=dtype))
    compiled = magneto.compile(net, backend=backend)
    logarithms = []
    for seed, sizes in enumerate(SIZES):
        x = torch.randn(*sizes, 4).to(dtype)
        ours, theirs = train(compiled, net, x, seed), train(plain, plain, x, seed)
        reference = train(getattr(exact, "in_full", exact), exact, x.double(), seed)
        assert [(one.dtype, one.shape, stride) for one, stride in ours] == [
            (one.dtype, one.shape, stride) for one, stride in theirs
        ]
        for (one, _), (other, _), (best, _) in zip(ours, theirs, reference, strict=True):
            far = [(value.double() - best).pow(2).sum().item() for value in (one, other)]
            logarithms.append(math.log((far[0] + 1e-20) / (far[1] + 1e-20)) / 2)
    assert sum(logarithms) / len(logarithms) <= math.log(2), logarithms
    stats = magneto.stats()
    assert stats["frames"] == 2 and stats["joint_graphs"] == 2, stats
    assert not stats["breaks"] and not stats["no_joint"] and not stats["undone"], stats


def test_lstm_under_autocast() -> None:
    """oneDNN's: where eager has none of these floats, it raises."""
    net = UnderAutocast(nn.LSTM(4, 8, 2))
    plain = copy.deepcopy(net)
    compiled = magneto.compile(net)
    for seed, sizes in enumerate(SIZES):
        x = torch.randn(*sizes, 4)
        try:
            expected = train(plain, plain, x, seed)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).split(".")[0]):
                train(compiled, net, x, seed)
            continue
        torch.testing.assert_close(train(compiled, net, x, seed), expected, rtol=2e-2, atol=1e-3)
        assert magneto.stats()["frames"] <= 2 and not magneto.stats()["breaks"]


@pytest.mark.parametrize("layer", [nn.GRU, nn.RNN])
def test_dropout_without_gradients(layer: Callable[..., nn.Module]) -> None:
    net = layer(4, 8, 2, dropout=0.5)
    compiled = magneto.compile(net)
    for seed, sizes in enumerate(SIZES):
        x = torch.randn(*sizes, 4)
        found = []
        for call in (compiled, net):
            torch.manual_seed(seed)
            with torch.no_grad():
                found.append(call(x))
        torch.testing.assert_close(*found)
    assert magneto.stats()["frames"] == 2


def outcome(call: Callable[..., Tensor], *args: Any) -> Any:
    try:
        return call(*args).shape
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("call", ["gru", "rnn_tanh"])
def test_errors_are_those_of_eager(call: str) -> None:
    """Of the functions themselves, where no module looks at shapes."""
    net = {"gru": nn.GRU, "rnn_tanh": nn.RNN}[call](4, 8)

    def program(x: Tensor, h: Tensor, weights: list[Tensor]) -> Tensor:
        return getattr(torch, call)(x, h, weights, True, 1, 0.0, True, False, False)[0]

    compiled = magneto.compile(program, dynamic=True)
    weights = [*net.parameters()]
    right = (torch.randn(5, 3, 4), torch.zeros(1, 3, 8), weights)
    torch.testing.assert_close(compiled(*right), program(*right))
    for wrong in [
        (torch.randn(5, 3, 6), torch.zeros(1, 3, 8), weights),
        (torch.randn(5, 3, 4), torch.zeros(1, 2, 8), weights),
        (torch.randn(5, 3, 4), torch.zeros(1, 3, 8), weights[:3]),
        (torch.randn(5, 3, 4), torch.zeros(1, 1, 8), weights),
        (torch.randn(5, 3, 4), torch.zeros(2, 3, 8), weights),
        (torch.randn(5, 4), torch.zeros(1, 3, 8), weights),
    ]:
        assert outcome(compiled, *wrong) == outcome(program, *wrong)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_checkpoints(layer: Callable[..., nn.Module]) -> None:
    """oneDNN keeps nothing for gradients in a backward, so what it gave is saved."""
    net = layer(4, 8)
    plain = copy.deepcopy(net)

    def program(net: nn.Module, x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: net(y)[0].tanh(), x.sin(), use_reentrant=False)

    compiled = magneto.compile(program)
    for seed, sizes in enumerate(SIZES[:4]):
        x = torch.randn(*sizes, 4)
        got = train(lambda x: compiled(net, x), net, x, seed)
        torch.testing.assert_close(got, train(lambda x: program(plain, x), plain, x, seed))
    assert magneto.stats()["frames"] == 2 and not magneto.stats()["breaks"]
