"""Programs of the kinds that PyTorch's documents show, compiled: transforms, control flow, custom operators, classes of
tensors. One graph each; those at the end are side exits, and give eager's results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import documented_transforms
import numpy as np
import pytest
import torch
from compare import Closeness, assert_same
from torch import Tensor, nn
from torch._higher_order_ops import map as map_slices
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch.overrides import TorchFunctionMode

import magneto

pytestmark = pytest.mark.usefixtures("ours_alone")

X, Y = torch.arange(12.0).view(4, 3).sin(), torch.arange(12.0).view(4, 3).cos()

# -- control flow


class Choice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 3, torch.cos, torch.sin, (x,))


class ByData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 4.0, lambda x: x.cos() + x.sin(), lambda x: x.sin(), (x,))


class Countdown(nn.Module):
    def condition(self, count: Tensor, x: Tensor) -> Tensor:
        return count.sum() > 0

    def body(self, count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return count - 1, x * 2

    def forward(self, count: Tensor, x: Tensor) -> Any:
        return while_loop(self.condition, self.body, (count, x))


def branches() -> Any:
    return Choice()(X), Choice()(X[:2]), ByData()(X), ByData()(X + 3), torch.cond(True, torch.cos, torch.sin, (X,))


def countdowns() -> Any:
    return [Countdown()(torch.tensor([count]), X) for count in (3, 10)]


def sums() -> Any:
    def add(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        following = carry + x
        return following, following.clone()

    return scan(add, init=torch.zeros(3), xs=X), scan(add, init=torch.zeros_like(X[:, 0]), xs=X, dim=1, reverse=True)


def associative() -> Any:
    xs = torch.arange(1.0, 5.0)
    pairs = associative_scan(
        lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (X, Y), 0, combine_mode="generic", reverse=True
    )
    return pairs, [associative_scan(f, xs, dim=0, combine_mode="generic") for f in (torch.add, torch.mul)]


def slices() -> Any:
    def shifted(x: Tensor, by: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + by, lambda x: x - by, [x])

    return map_slices(lambda x: x.sin() + x.cos(), X), map_slices(shifted, X, torch.tensor([2.0]))


# -- custom operators


@torch.library.custom_op("documented::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


@sine.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@sine.register_vmap
def _(info: Any, in_dims: Any, x: Tensor) -> Any:
    return sine(x), in_dims[0]


@torch.library.custom_op("documented::crop", mutates_args=())
def crop(picture: Tensor, box: list[int]) -> Tensor:
    x0, y0, x1, y1 = box
    return picture[y0:y1, x0:x1].clone()


@crop.register_fake
def _(picture: Tensor, box: list[int]) -> Tensor:
    x0, y0, x1, y1 = box
    return picture.new_empty(y1 - y0, x1 - x0)


def keep_box(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.shape, ctx.box = inputs[0].shape, inputs[1]


def uncrop(ctx: Any, gradient: Tensor) -> Any:
    whole = gradient.new_zeros(ctx.shape)
    x0, y0, x1, y1 = ctx.box
    whole[y0:y1, x0:x1] = gradient
    return whole, None


crop.register_autograd(uncrop, setup_context=keep_box)


@torch.library.custom_op("documented::sine_into", mutates_args={"out"}, device_types="cpu")
def sine_into(x: Tensor, out: Tensor) -> None:
    np.sin(x.numpy(), out=out.numpy())


@torch.library.custom_op("documented::scaled", mutates_args=())
def scaled(xs: list[Tensor], weight: Tensor | None = None, times: int = 1, by: float = 2.0) -> list[Tensor]:
    return [x * times * by if weight is None else x * weight for x in xs]


@scaled.register_fake
def _(xs: list[Tensor], weight: Tensor | None = None, times: int = 1, by: float = 2.0) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


LIBRARY = torch.library.Library("documented_too", "DEF")
LIBRARY.define("square(Tensor x) -> Tensor")
LIBRARY.define("shifted(Tensor x, int by=1) -> Tensor")
LIBRARY.impl("square", lambda x: torch.from_numpy(np.square(x.detach().numpy())), "CPU")
LIBRARY.impl("shifted", lambda x, by=1: x + by, "CompositeImplicitAutograd")
torch.library.register_fake("documented_too::square", torch.empty_like, lib=LIBRARY)


def operators() -> Any:
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sine(x).sum() + crop(x, [0, 1, 2, 3]).pow(2).sum(), x)
    return gradient, crop(X, (1, 0, 3, 2)).sin(), torch.vmap(sine)(X)


def operators_of_other_signatures() -> Any:
    out = torch.empty_like(X)
    sine_into(X, out)
    return out + 1, scaled([X, Y], times=3, by=1.5), scaled([X], Y)


def operators_of_a_library() -> Any:
    return torch.ops.documented_too.square(X), torch.ops.documented_too.square.default(Y) + shifted(X), shifted(X, 3)


def shifted(x: Tensor, *by: int) -> Tensor:
    return torch.ops.documented_too.shifted(x, *by)


# -- classes of tensors, modes, functions


class Diagonal:
    """Looks like a tensor, and is none."""

    handled: dict[Any, Any] = {}

    def __init__(self, size: int, value: float) -> None:
        self.size, self.value = size, value

    def tensor(self) -> Tensor:
        return self.value * torch.eye(self.size)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in cls.handled or not all(issubclass(each, (Tensor, Diagonal)) for each in types):
            return NotImplemented
        return cls.handled[func](*args, **(kwargs or {}))


def plain(value: Any) -> Any:
    return value.tensor() if isinstance(value, Diagonal) else value


Diagonal.handled[torch.mean] = lambda x: float(x.value) / x.size
Diagonal.handled[torch.add] = lambda a, b: torch.add(plain(a), plain(b))


class Named(Tensor):
    """Notes what is called with it."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Pair(Tensor):
    """Two tensors, which operators compute with."""

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Any:
        facts = {"strides": a.stride(), "storage_offset": a.storage_offset(), "dtype": a.dtype, "device": a.device}
        return Tensor._make_wrapper_subclass(cls, a.size(), requires_grad=a.requires_grad, layout=a.layout, **facts)

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def side(name: str) -> Any:
            only = torch.utils._pytree.tree_map_only
            return func(*only(Pair, lambda x: getattr(x, name), args), **only(Pair, lambda x: getattr(x, name), kwargs))

        kwargs = kwargs or {}
        return Pair(side("a"), side("b"))


class Noting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def like_tensors() -> Any:
    eye = Diagonal(3, 2.0)
    return torch.mean(eye), torch.add(eye, X[:3]), torch.add(eye, eye)


def noted_calls() -> Any:
    Named.seen.clear()
    total = (X.as_subclass(Named) + 1).sum()
    return total.as_subclass(Tensor), list(Named.seen)


def pairs() -> Any:
    both = Pair(X[1:], Y[1:])
    both = (both @ both.t()).relu() + 1
    return both.a, both.b


def mode() -> Any:
    with Noting() as noting:
        y = X.sin() + torch.ones(3)
    return y, noting.seen


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result = x.mm(weight.t())
        return result if bias is None else result + bias.unsqueeze(0).expand_as(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        of_x = gradient.mm(weight) if ctx.needs_input_grad[0] else None
        of_weight = gradient.t().mm(x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, gradient.sum(0) if bias is not None and ctx.needs_input_grad[2] else None


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_slope: Tensor) -> Tensor:
        x, slope = ctx.saved_tensors
        return gradient * slope + of_slope * 6 * x


WEIGHT, BIAS = nn.Parameter(Y[:, :3] * 0.5), nn.Parameter(Y[:, 0] * 1.0)


def functions() -> Any:
    gradients = torch.autograd.grad(Affine.apply(X, WEIGHT, BIAS).sin().sum(), (WEIGHT, BIAS))
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Cube.apply(x)[0].sum(), x, create_graph=True)
    return gradients, slope.detach(), torch.autograd.grad(slope.sum(), x)


def functions_in_transforms() -> Any:
    def cube(x: Tensor) -> Tensor:
        return Cube.apply(x)[0]

    return (
        torch.vmap(cube)(X),
        torch.func.grad(lambda x: cube(x).sum())(X),
        torch.func.grad(torch.func.grad(cube))(X[1, 1]),
    )


def not_implemented() -> Any:
    try:
        return torch.mul(Diagonal(2, 3.0), X)
    except TypeError as error:
        return str(error)[:30]


def linearized() -> Any:
    value, tangent = torch.func.linearize(torch.sin, X)
    return value, tangent(Y), tangent(X)


ONE_GRAPH = (
    *documented_transforms.PROGRAMS,
    *(branches, countdowns, sums, associative, slices),
    *(operators, operators_of_other_signatures, operators_of_a_library),
    *(like_tensors, noted_calls, pairs, mode, functions, functions_in_transforms, not_implemented, linearized),
)


# -- side exits


def functionalized() -> Any:
    return torch.func.functionalize(lambda x: (x + 1).view(-1).add_(1))(X)


SIDE_EXITS = (functionalized,)


def detached(result: Any) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, result)


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[], Any]) -> None:
    want = detached(program())
    compiled = magneto.compile(program, fullgraph=True)
    for _ in range(2):
        assert_same(detached(compiled()), want, closeness=Closeness(rtol=1e-4, atol=1e-5, floats=True))
    assert not magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


@pytest.mark.parametrize("program", SIDE_EXITS, ids=lambda program: program.__name__)
def test_side_exits(program: Callable[[], Any]) -> None:
    want = detached(program())
    compiled = magneto.compile(program)
    for _ in range(2):
        assert_same(detached(compiled()), want, closeness=Closeness(rtol=1e-4, atol=1e-5, floats=True))
    assert magneto.stats()["break_reasons"]
