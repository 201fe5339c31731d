"""What watches operators while compiled functions are called: __torch_dispatch__, torch.func, jit.trace, forward AD."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from compare import assert_same
from torch.utils._python_dispatch import TorchDispatchMode

import magneto
import magneto.exc

pytestmark = pytest.mark.lenient  # leaving a call to CPython is counted as a fallback

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)


class Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """Changes what operators give."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


def program(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    return y.relu() * x


@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("backend", BACKENDS)
def test_mode_around_a_call_sees_each_operator(backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for captured_first in (False, True):
        if captured_first:
            compiled(X)
        with Recording() as expected:
            want = program(X)
        for _ in range(2):
            with Recording() as mode:
                got = compiled(X)
            assert_same(got, want)
            assert mode.seen == expected.seen
    with Doubling():
        assert_same(compiled(X), program(X))
    assert_same(compiled(X), program(X))
    assert magneto.stats()["graphs"] == 1


@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("backend", BACKENDS)
def test_mode_inside_a_compiled_function(backend: str) -> None:
    def inside(x: torch.Tensor) -> Any:
        y = x.cos()
        with Doubling():
            y = y.sin() + 1
        return y.cos()

    compiled = magneto.compile(inside, backend=backend)
    for _ in range(3):
        assert_same(compiled(X), inside(X))


@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
def test_mode_in_a_called_function_ends_with_it() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with Recording() as mode:
            y = x.sin() * 2
            magneto.graph_break()
        return y + len(mode.seen)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1).cos().exp()

    compiled = magneto.compile(outer)
    for _ in range(2):
        assert_same(compiled(X), outer(X))
    assert magneto.stats()["graphs"] >= 2  # in front of the mode and behind it


def test_it_is_said_once() -> None:
    compiled = magneto.compile(program)
    before = magneto.stats()["fallbacks"].get("dispatch mode", 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with Recording():
                compiled(X)
    assert len(caught) <= 1  # an earlier test may have heard it
    assert magneto.stats()["fallbacks"]["dispatch mode"] == before + 3


# -- subclasses -----------------------------------------------------------------------------------------------------------


class Logged(torch.Tensor):
    """A wrapper subclass, as quantised and distributed tensors are."""

    inner: torch.Tensor
    log: list[str] = []

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Logged:
        result = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        result.inner = inner
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.log.append(str(func))
        plain = torch.utils._pytree.tree_map_only(Logged, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, Logged, func(*plain[0], **plain[1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrapper_subclass_as_argument(backend: str) -> None:
    def run(function: Callable[..., Any]) -> tuple[torch.Tensor, list[str]]:
        Logged.log.clear()
        result = function(Logged(X), X)
        assert type(result) is Logged
        return result.inner, list(Logged.log)

    def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y.exp() + 1
        z = x.sin() + y
        return z.relu() * 2

    compiled = magneto.compile(mixed, backend=backend)
    want = run(mixed)
    for _ in range(2):
        assert_same(run(compiled), want)
    assert_same(compiled(X, X), mixed(X, X))


class WithData(torch.Tensor):
    """One that has data of its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def test_subclasses_are_no_errors_of_ours() -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() + y

    x = torch.Tensor._make_subclass(WithData, X)
    compiled = magneto.compile(mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(x, X)
    assert not magneto.stats()["fallbacks"]
    assert all(
        reason.startswith("UnsupportedTensor: ") and "WithData" in reason for reason in magneto.stats()["break_reasons"]
    )
    with pytest.raises(magneto.exc.Unsupported, match="subclasses") as raised:
        magneto.compile(mixed, fullgraph=True)(x, X)
    assert "error of Magneto" not in str(raised.value)


def test_wrapper_subclass_made_inside() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        wrapped = Logged(x + 1)
        return (wrapped * 2).inner - 1

    compiled = magneto.compile(inside)
    for _ in range(2):
        assert_same(compiled(X), inside(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_with_subclass_parameters(backend: str) -> None:
    module = torch.nn.Linear(6, 3)
    module.weight = torch.nn.Parameter(Logged(module.weight.detach()), requires_grad=False)
    compiled = magneto.compile(module, backend=backend)
    for _ in range(2):
        got, want = compiled(X), module(X)
        assert type(got) is Logged and torch.equal(got.inner, want.inner)


@pytest.mark.parametrize(
    "make", [lambda x: x.to_sparse(), lambda x: torch.nested.nested_tensor([x, x[:2]]), lambda x: x.to_mkldnn()]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_other_layouts(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def doubled(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + x, y.sin() + 1

    compiled = magneto.compile(doubled)
    for _ in range(2):
        got, want = compiled(make(X), X), doubled(make(X), X)
        assert (type(got[0]), got[0].layout, got[0].is_nested) == (type(want[0]), want[0].layout, want[0].is_nested)
        if want[0].is_nested:
            assert all(torch.equal(a, b) for a, b in zip(got[0].unbind(), want[0].unbind()))
        else:
            assert_same(got[0].to_dense(), want[0].to_dense())
        assert_same(got[1], want[1])


# -- transforms -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_of_a_compiled_function(backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    batch = torch.randn(3, 6)
    for captured_first in (False, True):
        if captured_first:
            compiled(X)
        assert_same(torch.vmap(compiled)(batch), torch.vmap(program)(batch))
        assert_same(torch.func.grad(lambda x: compiled(x).sum())(X), torch.func.grad(lambda x: program(x).sum())(X))
        assert_same(torch.func.jvp(compiled, (X,), (X,)), torch.func.jvp(program, (X,), (X,)))
        assert_same(torch.func.jacrev(compiled)(X), torch.func.jacrev(program)(X))
        assert_same(torch.func.functionalize(compiled)(X), torch.func.functionalize(program)(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_inside_a_compiled_function(backend: str) -> None:
    def inside(x: torch.Tensor) -> Any:
        y = torch.vmap(program)(x.reshape(2, 3) + 1)
        return torch.func.grad(lambda t: program(t).sum())(x) + y.sum()

    compiled = magneto.compile(inside, backend=backend)
    for _ in range(2):
        assert_same(compiled(X), inside(X))


@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_differentiation(backend: str) -> None:
    def tangent(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(X, X + 1))))

    compiled = magneto.compile(program, backend=backend)
    for _ in range(2):
        got, want = tangent(compiled), tangent(program)
        assert got[1] is not None
        assert_same(got, want)
        compiled(X)

    def inside(x: torch.Tensor) -> Any:
        y = x.exp()
        with forward_ad.dual_level():
            primal, change = forward_ad.unpack_dual(program(forward_ad.make_dual(y, x)))
        return primal * 2, change * 3

    compiled = magneto.compile(inside, backend=backend)
    for _ in range(2):
        assert_same(compiled(X), inside(X))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_of_a_compiled_function() -> None:
    compiled = magneto.compile(program)
    compiled(X)
    traced = torch.jit.trace(compiled, (X,))
    assert_same(traced(X * 3), program(X * 3))


def test_fx_symbolic_trace_of_a_compiled_module() -> None:
    module = magneto.compile(torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.ReLU()))
    module(X)
    try:
        traced = torch.fx.symbolic_trace(module)
    except Exception as error:  # a clear refusal is as good
        assert "magneto" in str(error).lower() or isinstance(error, torch.fx.proxy.TraceError), error
    else:
        assert_same(traced(X * 3), module(X * 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_tensor_hooks(backend: str) -> None:
    def run(function: Callable[..., Any]) -> Any:
        packed: list[tuple[int, ...]] = []

        def pack(x: torch.Tensor) -> torch.Tensor:
            packed.append(tuple(x.shape))
            return x * 2

        x = X.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            y = function(x)
        y.sum().backward()
        return x.grad, packed

    compiled = magneto.compile(program, backend=backend)
    for _ in range(2):
        assert_same(run(compiled), run(program))


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed_part(backend: str) -> None:
    from torch.utils.checkpoint import checkpoint

    def inside(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(program, x * 2, use_reentrant=False) + 1

    def run(function: Callable[..., Any]) -> Any:
        x = X.clone().requires_grad_()
        y = function(x)
        y.sum().backward()
        return y, x.grad

    compiled = magneto.compile(inside, backend=backend)
    for _ in range(2):
        assert_same(run(compiled), run(inside))
    outer = magneto.compile(program, backend=backend)
    assert_same(run(lambda x: checkpoint(outer, x, use_reentrant=False)), run(program))
