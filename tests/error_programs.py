"""Programs that write, and then raise, as a table: what is written, what raises, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

COUNT = 0
CALLS: list[str] = []  # of operators of our own that raised and write nothing


class State:
    """What a program may write, and what it is given."""

    def __init__(self) -> None:
        self.x = torch.arange(12.0).reshape(4, 3) / 8
        self.w = torch.zeros(3)
        self.base = torch.zeros(6)
        self.view = self.base[1:4]
        self.turned = torch.zeros(2, 3)
        self.cache = torch.zeros(2, 3)
        self.p = torch.ones(3, requires_grad=True)
        self.norm = torch.nn.BatchNorm1d(3)
        self.log: list[Any] = []
        self.table: dict[str, Any] = {"z": 1}
        self.count = 0
        self.last: Any = None
        self.size = 2
        self.huge = 3

    def seen(self, digits: int | None = None) -> dict[str, Any]:
        """All of it; values rounded, if at all, to so many digits."""

        def numbers(value: Tensor) -> Any:
            value = value.detach()
            return (value if digits is None or not value.is_floating_point() else value.round(decimals=digits)).tolist()

        tensors = {
            name: getattr(self, name) for name in ("x", "w", "base", "view", "turned", "cache", "p")
        } | self.norm.state_dict(keep_vars=True)
        seen: dict[str, Any] = {
            name: (numbers(value), tuple(value.shape), value.stride(), value._version, value.requires_grad)
            for name, value in tensors.items()
        }
        last = numbers(self.last) if isinstance(self.last, Tensor) else self.last
        return seen | {
            "python": (self.log, self.table, self.count, last, COUNT, CALLS),
            "random": torch.get_rng_state().tolist(),
        }


# -- what is written before


def counted(s: State) -> None:
    global COUNT
    COUNT += 1
    s.w.add_(1)


def twice(s: State) -> None:
    s.w.add_(1)
    s.w.mul_(2)


def attribute(s: State) -> None:
    s.count += 1
    s.w.add_(1)
    s.last = s.w * 2


def containers(s: State) -> None:
    s.log.append("before")
    s.w.add_(1)
    s.table["a"] = len(s.log)
    s.table.pop("z")


def random(s: State) -> None:
    s.w.add_(torch.rand(3))
    s.view.add_(F.dropout(s.x, 0.5)[0])


def several(s: State) -> None:
    torch._foreach_add_([s.w, s.view], 1.0)
    torch._foreach_mul_([s.w, s.view], [2.0, 3.0])


def element(s: State) -> None:
    s.w[1] = s.x[0, 1]
    s.w[2] = 7


def geometry(s: State) -> None:
    s.turned.t_()
    s.turned.add_(1)


WRITES: dict[str, Callable[[State], Any]] = {
    "input": lambda s: s.w.add_(1),
    "twice": twice,
    "buffers": lambda s: s.norm(s.x),
    "attribute": attribute,
    "containers": containers,
    "random": random,
    "counter": counted,
    "view": lambda s: s.view.mul_(2).add_(1),
    "base_and_view": lambda s: (s.base.add_(1), s.view.add_(1)),
    "element": element,
    "geometry": geometry,
    "out": lambda s: torch.add(s.x[0], 1, out=s.w),
    "several": several,
    "read_before": lambda s: (s.w.sum(), s.w.copy_(s.w * 0.5 + s.x[0])),
    "written_by_own": lambda s: fill_own(s.w, 3.0),
}

# -- what raises


@torch.library.custom_op("error_programs::fill_own", mutates_args=("x",))
def fill_own(x: Tensor, value: float) -> None:
    x.add_(value)


@torch.library.custom_op("error_programs::refuse", mutates_args=())
def refuse(x: Tensor, i: Tensor) -> Tensor:
    if i.max() > 2:
        CALLS.append("refuse")
        raise ValueError("a bad index")
    return x.clone()


@torch.library.custom_op("error_programs::write_and_refuse", mutates_args=("x",))
def write_and_refuse(x: Tensor, i: Tensor) -> None:
    x.add_(1)
    if i.max() > 2:
        raise ValueError("a bad index")
    x.mul_(2)


@torch.library.custom_op("error_programs::interrupted", mutates_args=())
def interrupted(x: Tensor, i: Tensor) -> Tensor:
    if i.max() > 2:
        CALLS.append("interrupted")
        raise KeyboardInterrupt
    return x.clone()


@torch.library.custom_op("error_programs::write_and_leave", mutates_args=("x",))
def write_and_leave(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    if i.max() > 2:
        raise SystemExit("leaves")
    return x * 2


for operator in (refuse, interrupted, write_and_leave):
    operator.register_fake(lambda x, i: torch.empty_like(x))
write_and_refuse.register_fake(lambda x, i: None)
fill_own.register_fake(lambda x, value: None)


def second_call(s: State, i: Tensor) -> Tensor:
    return refuse(s.w, i.clamp(max=2)) + refuse(s.w * 2, i)


def raise_for_item(s: State, i: Tensor) -> Tensor:
    if i.max().item() > 2:
        raise KeyError("of the data")
    return s.x


def raise_for_tensor(s: State, i: Tensor) -> Tensor:
    if (i > 2).any():
        raise ValueError("of the data")
    return s.x


def asserted(s: State, i: Tensor) -> Tensor:
    assert i.max() < 3, "too large"
    return s.x


def raise_always(s: State, i: Tensor) -> Tensor:
    raise RuntimeError("always")


def raise_for_python(s: State, i: Tensor) -> Any:
    return {1: s.x}[s.huge - 2]


Raising = Callable[[State, Tensor], Any]
RAISING: dict[str, Raising] = {
    "index": lambda s, i: s.x[i],
    "index_of_columns": lambda s, i: s.x[:, i],
    "two_dimensions": lambda s, i: s.x[i.clamp(max=2)].sum() + s.x.t()[:, i.clamp(max=2)].sum() + s.x[:, i].sum(),
    "index_put": lambda s, i: s.x.index_put((i + 1,), s.x[0]),
    "index_put_": lambda s, i: s.w.index_put_((i,), s.x[0]),
    "index_add_": lambda s, i: s.w.index_add_(0, i, s.x[0] + 1),
    "index_select": lambda s, i: s.x.index_select(1, i),
    "gather": lambda s, i: s.x.gather(1, i.expand(4, 3)),
    "scatter_add_": lambda s, i: s.w.scatter_add_(0, i, s.x[0] + 1),
    "scatter_reduce_": lambda s, i: s.w.scatter_reduce_(0, i, s.x[0] + 1, "amax"),
    "take": lambda s, i: s.x.take(i * 5),
    "put": lambda s, i: s.x.put(i * 5, s.x[0]),
    "put_": lambda s, i: s.w.put_(i, s.x[0]),
    "embedding": lambda s, i: F.embedding(i + 1, s.x),
    "one_hot": lambda s, i: F.one_hot(i, 3),
    "nll_loss": lambda s, i: F.nll_loss(s.x[:3], i),
    "cross_entropy": lambda s, i: F.cross_entropy(s.x[:3] + s.w, i),
    "multi_margin_loss": lambda s, i: F.multi_margin_loss(s.x[:3], i),
    "multilabel_margin_loss": lambda s, i: F.multilabel_margin_loss(s.x[:3], i.expand(3, 3)),
    "binary_cross_entropy": lambda s, i: F.binary_cross_entropy(i / 2, s.x[0]),
    "histogram": lambda s, i: torch.histogram(s.x * (2 / (i[2] < 3)) * 0 + i.max() % 7 / (i.max() < 3), 4),
    "bincount": lambda s, i: torch.bincount(2 - i),
    "multinomial": lambda s, i: torch.multinomial(2.0 - i, 1),
    "bernoulli": lambda s, i: torch.bernoulli(i / 2),
    "bernoulli_": lambda s, i: s.w.bernoulli_(i / 2),
    "floor_divide": lambda s, i: 7 // (i - 7),
    "remainder_": lambda s, i: i.clone().remainder_(i - 7),
    "cholesky": lambda s, i: torch.linalg.cholesky(torch.eye(3) * (3 - i)),
    "inverse": lambda s, i: torch.linalg.inv(torch.eye(3) * (7 - i)),
    "solve": lambda s, i: torch.linalg.solve(torch.eye(3) * (7 - i), s.w),
    "repeat_interleave": lambda s, i: s.x[:3].repeat_interleave(2 - i, 0),
    "max_unpool": lambda s, i: F.max_unpool1d(s.x[:3], i.expand(3, 3), 2),
    "fake_quantize": lambda s, i: torch.fake_quantize_per_channel_affine(s.x[:3], s.x[0] + 1, i.int(), 0, 0, 2),
    "unique_view": lambda s, i: i.unique().view(3) + s.x[i.clamp(max=2)][:, 0] if i.max() < 3 else s.x.view(5),
    "masked_view": lambda s, i: s.x[:3][i < 3].view(3, 3),
    "nonzero_reshape": lambda s, i: (i < 3).nonzero().reshape(3),
    "item_view": lambda s, i: s.x.view(int(i.max()) + 1, 4),
    "item_reshape": lambda s, i: s.x.reshape(-1, int(i.max()) + 1),
    "item_narrow": lambda s, i: s.x.narrow(0, 1, int(i.max())),
    "item_division": lambda s, i: 1 // (int(i.max()) - 7) + s.x,
    "raise_for_item": raise_for_item,
    "raise_for_tensor": raise_for_tensor,
    "asserted": asserted,
    "raise_always": raise_always,
    "raise_for_python": raise_for_python,
    "size_view": lambda s, i: s.x.view(s.huge, 4),
    "memory": lambda s, i: s.x.new_zeros(s.huge, 1 << 20 if s.huge > 3 else 1)[0],
    "memory_of_sum": lambda s, i: (s.w.expand(s.huge, 3) + s.x[0]).sum() if s.huge < 9 else torch.ones(s.huge) + s.w,
    "memory_of_copy": lambda s, i: s.w.expand(s.huge, 3).contiguous()[0],
    "memory_of_product": lambda s, i: (s.w[:, None].expand(3, s.huge).t() @ s.x[:3])[0],
    "own": lambda s, i: refuse(s.w, i),
    "own_second_call": second_call,
    "own_write": lambda s, i: write_and_refuse(s.w, i),
    "own_interrupted": lambda s, i: interrupted(s.w * 2, i),
    "own_write_and_leave": lambda s, i: write_and_leave(s.w, i),
}


def goods_and_bads(name: str) -> Iterator[tuple[Tensor, int]]:
    """Index and size of the calls."""
    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
    huge = 3 if not name.startswith(("memory", "size", "raise_for_python")) else 1 << 46 if "memory" in name else 5
    yield good, 3
    yield bad, huge
    yield good, 3
    yield bad, huge


# -- where


def plain(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    write(s)
    y = raising(s, i)
    s.w.mul_(3)
    s.log.append("after")
    return y


def handled(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    try:
        write(s)
        y = raising(s, i)
        s.w.mul_(3)
    except BaseException as error:
        s.log.append(type(error).__name__)
        y = s.w.add_(2) + 1
    s.log.append("after")
    return y


def finally_(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    try:
        write(s)
        return raising(s, i)
    finally:
        s.w.sub_(5)
        s.log.append("finally")


def within(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    with torch.no_grad():
        write(s)
        y = raising(s, i)
        s.log.append("after")
    return y


def trained(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    y = (s.x * s.p).cos()
    write(s)
    z = raising(s, i)
    s.w.mul_(3)
    return y.sum(), z


def between(write: Callable[[State], Any], raising: Raising, s: State, i: Tensor) -> Any:
    y = s.x @ s.x.t()
    write(s)
    z = F.linear(y, s.x.t())
    s.count += 1
    u = raising(s, i)
    write(s)
    return z.sum() + y.sum(), u


PLACES: dict[str, Callable[..., Any]] = {
    "plain": plain,
    "handled": handled,
    "finally": finally_,
    "within": within,
    "trained": trained,
    "between": between,
}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        call()
    except BaseException as error:
        return type(error), str(error)
    return None


def run(write: str, raising: str, place: str, compile: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
    """What is seen after each call."""
    global COUNT
    COUNT = 0
    CALLS.clear()
    writes, raises, places = WRITES[write], RAISING[raising], PLACES[place]

    def program(s: State, i: Tensor) -> Any:
        return places(writes, raises, s, i)

    compiled = compile(program)
    torch.manual_seed(0)
    state, seen = State(), []
    for i, huge in goods_and_bads(raising):
        state.huge = huge
        error = outcome(lambda i=i: compiled(state, i))
        seen.append({"error": error} | {name: repr(value) for name, value in state.seen().items()})
    return seen
