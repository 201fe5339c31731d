"""Packed sequences: lengths are data, and one program serves all of them, and all sizes, in forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import magneto

SIZES = [(3, 5), (4, 7), (5, 4), (6, 10), (3, 6), (4, 9), (7, 3)]


def lengths_of(batch: int, steps: int, is_sorted: bool) -> Tensor:
    lengths = torch.randint(1, steps + 1, (batch,))
    lengths[0] = steps
    return lengths.sort(descending=True).values if is_sorted else lengths


def padded(batch: int, steps: int, is_sorted: bool = False, batch_first: bool = True, dtype: Any = None) -> list[Any]:
    sizes = (batch, steps, 4) if batch_first else (steps, batch, 4)
    return [torch.randn(sizes, dtype=dtype), lengths_of(batch, steps, is_sorted)]


def tokens(batch: int, steps: int) -> list[Any]:
    lengths = lengths_of(batch, steps, is_sorted=False)
    return [torch.randint(1, 20, (batch, steps)) * (torch.arange(steps) < lengths[:, None]), lengths]


def packed(batch: int, steps: int) -> list[Any]:
    return [pack_padded_sequence(*padded(batch, steps), batch_first=True, enforce_sorted=False)]


class Net(nn.Module):
    def __init__(self, program: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.program = program
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.program(self, *args)


def pack(x: Tensor, lengths: Any) -> PackedSequence:
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)


def unpack(p: PackedSequence, **how: Any) -> Any:
    return pad_packed_sequence(p, batch_first=True, **how)


def whole(net: Any, x: Tensor, lengths: Any) -> Any:
    out, state = net.rnn(pack(x, lengths))
    return unpack(out, padding_value=-1.5), state


def of_sorted(net: Any, x: Tensor, lengths: Tensor) -> Any:
    out, state = net.rnn(pack_padded_sequence(x, lengths))
    return pad_packed_sequence(out, total_length=x.shape[0]), state


def of_packed(net: Any, p: PackedSequence) -> Any:
    out, state = net.rnn(p)
    return unpack(out), state, out.data


def of_its_data(net: Any, x: Tensor, lengths: Tensor) -> Any:
    p = pack(x, lengths)
    out, _ = net.rnn(p._replace(data=net.first(p.data).relu()))
    return out


def tagger(net: Any, x: Tensor, lengths: Tensor) -> Tensor:
    out, _ = net.rnn(pack(net.embedding(x), lengths))
    return F.cross_entropy(out.data, pack(x % 5, lengths).data)


def attention(net: Any, x: Tensor, lengths: Tensor) -> Tensor:
    out, _ = net.rnn(pack(net.embedding(x), (x != 0).sum(1).cpu()))
    out, _ = unpack(out, total_length=x.shape[1])
    return (out * out.sum(-1).masked_fill(x == 0, -1e9).softmax(1).unsqueeze(-1)).sum(1)


def with_state(net: Any, x: Tensor, lengths: Tensor) -> Any:
    out, state = net.rnn(pack(x, lengths), (x.mean(1) @ net.weight).unsqueeze(0))
    out, _ = net.rnn(out._replace(data=out.data[:, :4]), state)
    return out.data, state


def of_autocast(net: Any, x: Tensor, lengths: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return whole(net, x, lengths)


def of_doubles(batch: int, steps: int) -> list[Any]:
    return padded(batch, steps, dtype=torch.float64)


def of_sorted_steps(batch: int, steps: int) -> list[Any]:
    return padded(batch, steps, is_sorted=True, batch_first=False)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[..., list[Any]]]] = {
    "lstm": (lambda: Net(whole, rnn=nn.LSTM(4, 8)), padded),
    "lstm_of_all": (lambda: Net(of_sorted, rnn=nn.LSTM(4, 8, 2, dropout=0.4, bidirectional=True)), of_sorted_steps),
    "lstm_that_projects": (lambda: Net(whole, rnn=nn.LSTM(4, 8, 2, proj_size=3, bidirectional=True)), padded),
    "lstm_of_doubles": (lambda: Net(whole, rnn=nn.LSTM(4, 8).double()), of_doubles),
    "lstm_under_autocast": (lambda: Net(of_autocast, rnn=nn.LSTM(4, 8)), padded),
    "gru": (lambda: Net(whole, rnn=nn.GRU(4, 8, 2, bidirectional=True)), padded),
    "gru_with_state": (lambda: Net(with_state, rnn=nn.GRU(4, 8), weight=nn.Parameter(torch.randn(4, 8))), padded),
    "gru_under_autocast": (lambda: Net(of_autocast, rnn=nn.GRU(4, 8)), padded),
    "rnn": (lambda: Net(whole, rnn=nn.RNN(4, 8, bias=False, nonlinearity="relu")), padded),
    "rnn_under_autocast": (lambda: Net(of_autocast, rnn=nn.RNN(4, 8)), padded),
    "packed": (lambda: Net(of_packed, rnn=nn.LSTM(4, 8)), packed),
    "data": (lambda: Net(of_its_data, first=nn.Linear(4, 6), rnn=nn.GRU(6, 8)), padded),
    "tagger": (lambda: Net(tagger, embedding=nn.Embedding(20, 4, padding_idx=0), rnn=nn.LSTM(4, 5)), tokens),
    "attention": (lambda: Net(attention, embedding=nn.Embedding(20, 4), rnn=nn.GRU(4, 8)), tokens),
}


def tensors_in(found: Any) -> list[Tensor]:
    if found is None or isinstance(found, Tensor):
        return [] if found is None else [found]
    return [tensor for item in found for tensor in tensors_in(item)]


def train(call: Callable[..., Any], net: nn.Module, args: list[Any], seed: int) -> list[tuple[Tensor, Any]]:
    """What it gives, and all gradients."""
    torch.manual_seed(seed)
    net.zero_grad()
    leaves = [arg.clone().requires_grad_() if getattr(arg, "is_floating_point", bool)() else arg for arg in args]
    given = tensors_in(call(*leaves))
    sum((k + 1) * tensor.float().sin().mean() for k, tensor in enumerate(given) if tensor.requires_grad).backward()
    leaves += net.parameters()
    found = [tensor.detach() for tensor in given]
    found += [leaf.grad for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad is not None]
    return [(tensor, tensor.stride()) for tensor in found]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program(name: str, backend: str) -> None:
    torch.manual_seed(3)
    make, batch = PROGRAMS[name]
    net = make()
    plain = copy.deepcopy(net)
    compiled = magneto.compile(net, backend=backend)
    for seed, sizes in enumerate(SIZES):
        args = batch(*sizes)
        torch.testing.assert_close(train(compiled, net, args, seed), train(plain, plain, args, seed))
    stats = magneto.stats()
    assert stats["frames"] == 2 and stats["joint_graphs"] == 2, stats
    assert not stats["breaks"] and not stats["no_joint"] and not stats["undone"], stats


def test_list_of_sequences() -> None:
    """`pack_sequence` of tensors whose lengths vary: as long as no two that were equal differ."""
    net = nn.GRU(4, 8)

    def program(net: nn.Module, rows: list[Tensor]) -> Any:
        return pad_packed_sequence(net(pack_sequence(rows, enforce_sorted=False))[0])

    compiled = magneto.compile(program)
    for lengths in [(3, 5, 2), (4, 7, 5), (9, 3, 6), (3, 2, 11), (5, 5, 5)]:
        rows = [torch.randn(length, 4, requires_grad=True) for length in lengths]
        found = []
        for call in (compiled, program):
            given = call(net, rows)
            found.append((given, torch.autograd.grad(given[0].sin().sum(), [*rows, *net.parameters()])))
        torch.testing.assert_close(*found)
    stats = magneto.stats()
    assert stats["frames"] == 2 and not stats["breaks"], stats


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding(padding_side: str, batch_first: bool) -> None:
    def program(rows: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(rows, batch_first, 2, padding_side)

    compiled = magneto.compile(program, dynamic=True)
    for lengths in [(3, 5), (4, 2), (6, 9)]:
        for rows in ([torch.randn(n, 2, 3) for n in lengths], [torch.arange(n) for n in lengths]):
            got, expected = compiled(rows), program(rows)
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()
    assert not magneto.stats()["breaks"]


@pytest.mark.parametrize(
    "lengths", [[5, 3, 0], [3, 5, 2], [5, 3], [[5, 3, 2]], [9, 3, 2]], ids=["zero", "unsorted", "few", "two", "long"]
)
def test_lengths_that_eager_refuses(lengths: list[Any]) -> None:
    """And those that pass the padded batch, of which eager packs fewer rows than it counts."""

    def program(x: Tensor, lengths: Tensor) -> Any:
        return pack_padded_sequence(x, lengths, batch_first=True)

    def outcome(call: Callable[..., Any]) -> Any:
        try:
            return call(torch.ones(3, 5, 4), torch.tensor(lengths))
        except RuntimeError as error:
            return str(error).split("\n")[0]

    compiled = magneto.compile(program)
    compiled(torch.ones(3, 5, 4), torch.tensor([5, 2, 1]))
    got, expected = outcome(compiled), outcome(program)
    torch.testing.assert_close(got, expected) if isinstance(expected, tuple) else None
    assert isinstance(expected, tuple) or got == expected


def test_too_short_a_total() -> None:
    def program(x: Tensor, lengths: Tensor, total: int) -> Any:
        return pad_packed_sequence(pack_padded_sequence(x, lengths), total_length=total)

    compiled = magneto.compile(program)
    args = torch.ones(5, 3, 4), torch.tensor([4, 2, 1])
    torch.testing.assert_close(compiled(*args, 4), program(*args, 4))
    for call in (compiled, program):
        with pytest.raises(ValueError, match="Expected total_length to be at least"):
            call(*args, 3)


def test_a_side_that_there_is_not() -> None:
    compiled = magneto.compile(lambda *rows: nn.utils.rnn.pad_sequence(rows, padding_side="middle"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="one of left or right"):
        compiled(torch.ones(3, 4), torch.ones(5, 4))
