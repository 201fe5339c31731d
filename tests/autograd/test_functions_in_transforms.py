"""Custom autograd functions inside torch.func's transforms: one graph, with PyTorch's own rules for each level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import Closeness, assert_same
from fresh import python
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import magneto

X, Y = torch.arange(12.0).view(4, 3).sin(), torch.arange(12.0).view(4, 3).cos()
CALLS: list[str] = []
FACTOR = 2.5
CLOSE = Closeness(rtol=1e-5, atol=1e-6, floats=True)


class Exp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0]


class Scaled(torch.autograd.Function):
    """Its backward applies it again; a rule of its own for vmap, that asks for the batch's size."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return x * y * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return Scaled.apply(gradient, y, ctx.scale), Scaled.apply(gradient, x, ctx.scale), None

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_y: Tensor | None, _: None) -> Any:
        x, y = ctx.saved_tensors
        return (0 if of_x is None else of_x * y * ctx.scale) + (0 if of_y is None else of_y * x * ctx.scale)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor, scale: float) -> Any:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        y = y.expand(info.batch_size, *y.shape) if in_dims[1] is None else y.movedim(in_dims[1], 0)
        return Scaled.apply(x, y, scale), 0


class Total(torch.autograd.Function):
    """Keeps a shape, which is that of one example."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.shape, ctx.needed = inputs[0].shape, ctx.needs_input_grad

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        return gradient.expand(ctx.shape) if ctx.needed[0] else None


class Sorted(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, dim: int) -> Any:
        places = torch.argsort(x, dim)
        return torch.take_along_dim(x, places, dim), places, torch.argsort(places, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[2])
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        return torch.take_along_dim(gradient, ctx.saved_tensors[0], ctx.dim), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, dim: int) -> Any:
        return Sorted.apply(x.movedim(in_dims[0], 0), dim % (x.dim() - 1) + 1), (0, 0, 0)


class Noted(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        CALLS.append("forward")
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        CALLS.append("setup")
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        CALLS.append("backward")
        return 2 * gradient * ctx.saved_tensors[0]


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * FACTOR

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.factor = FACTOR

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.factor


def total(x: Tensor) -> Tensor:
    return Exp.apply(x).sum()


def mapped(x: Tensor) -> Any:
    return vmap(Exp.apply)(x), vmap(Exp.apply, in_dims=1, out_dims=1)(x), vmap(vmap(Exp.apply))(x)


def gradients(x: Tensor) -> Any:
    return grad(total)(x), grad(lambda x: grad(total)(x).sin().sum())(x)


def gradients_per_example(x: Tensor) -> Any:
    return vmap(grad(total))(x), grad(lambda x: vmap(Exp.apply)(x).sum())(x), vmap(grad(Total.apply))(x)


def second_derivatives(x: Tensor) -> Any:
    return hessian(total)(x[0]), jacrev(jacrev(total))(x[0]), jacfwd(Exp.apply)(x[0])


def forward_mode(x: Tensor) -> Any:
    return jvp(Exp.apply, (x,), (x.cos(),)), vmap(lambda a, b: jvp(Exp.apply, (a,), (b,)))(x, x.sin())


def rule_of_its_own(x: Tensor) -> Any:
    y = x.cos()
    each = vmap(Scaled.apply, (0, None, None))(x, y[0], 2.0), vmap(Scaled.apply, (0, 1, None))(x, y.t(), 3)
    return each, grad(lambda x: vmap(Scaled.apply, (0, 0, None))(x, y, 2.0).sin().sum())(x)


def applied_behind_the_level(x: Tensor) -> Any:
    value, pull = vjp(lambda a, b: Scaled.apply(a, b, 0.5), x, x.cos())
    return value, pull(x), vmap(pull)(torch.stack([x, x.sin()]))


def integer_results(x: Tensor) -> Any:
    def least(row: Tensor) -> Tensor:
        return Sorted.apply(row, 0)[0][0]

    return vmap(Sorted.apply, (0, None))(x, -1)[0], vmap(grad(least))(x)


def notes(x: Tensor) -> Any:
    CALLS.clear()
    square = lambda x: Noted.apply(x).sum()  # noqa: E731
    results = grad(square)(x), vmap(grad(square))(x), grad(lambda y: grad(square)(y).sum())(x)
    return results, list(CALLS)


def made_inside(x: Tensor) -> Any:
    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor, count: int) -> Tensor:
            return x / count

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.count = inputs[0].shape[0]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return gradient / ctx.count, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, count: int) -> Any:
            return Shared.apply(x * info.batch_size, count), in_dims[0]

    return grad(lambda x: Shared.apply(x, x.shape[0]).sum())(x), vmap(lambda x: Shared.apply(x, 3))(x)


def without_gradients_outside(x: Tensor) -> Any:
    with torch.no_grad():
        return grad(total)(x), vmap(grad(Total.apply))(x.clone())


def refused(x: Tensor) -> Any:
    said = []
    for call in (lambda: vmap(Plain.apply)(x), lambda: jvp(Plain.apply, (x,), (x,))):
        try:
            call()
        except (RuntimeError, NotImplementedError) as error:
            said.append((type(error).__name__, str(error)))
    return said


PROGRAMS = (
    *(mapped, gradients, gradients_per_example, second_derivatives, forward_mode, rule_of_its_own),
    *(applied_behind_the_level, integer_results, notes, made_inside, without_gradients_outside, refused),
)


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[Tensor], Any], dynamic: bool | None) -> None:
    compiled = magneto.compile(program, fullgraph=True, dynamic=dynamic)
    for x in (X, Y, torch.cat([X, Y])):
        assert_same(compiled(x), program(x), closeness=CLOSE)


@pytest.mark.usefixtures("ours_alone")
def test_random_numbers_are_drawn_as_in_eager() -> None:
    class Dropped(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * torch.rand_like(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None: ...

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    def program(x: Tensor) -> Any:
        return vmap(Dropped.apply, randomness="different")(x), torch.rand(2)

    compiled = magneto.compile(program, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(1)
        want = program(X)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(X), want)


@pytest.mark.usefixtures("ours_alone")
def test_what_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Tensor:
        return grad(lambda x: Plain.apply(x).sum())(x)

    def mapping(x: Tensor) -> Any:
        try:
            return vmap(Plain.apply)(x)
        except RuntimeError as error:
            return type(error)

    compiled, compiled_mapping = magneto.compile(program, fullgraph=True), magneto.compile(mapping, fullgraph=True)

    def check() -> None:
        torch.testing.assert_close(compiled(X), program(X))
        got, want = compiled_mapping(X), mapping(X)
        assert got is want if isinstance(want, type) else torch.equal(got, want)

    check()
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    check()
    monkeypatch.setattr(Plain, "generate_vmap_rule", True)
    check()
    monkeypatch.setattr(Plain, "backward", staticmethod(lambda ctx, gradient: gradient * 7))
    check()


@pytest.mark.usefixtures("ours_alone")
def test_errors_of_the_methods() -> None:
    class Failing(Plain):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ValueError("no gradient")

    def program(x: Tensor) -> Tensor:
        return grad(lambda x: Failing.apply(x).sum())(x)

    compiled = magneto.compile(program)
    for _ in range(2):
        with pytest.raises(ValueError, match="no gradient"):
            compiled(X)


def of_a_trained_weight(weight: Tensor) -> Tensor:
    return vmap(Plain.apply)(weight) if Plain.generate_vmap_rule else grad(lambda w: Plain.apply(w * w).sum())(weight)


@pytest.mark.usefixtures("ours_alone")
def test_gradients_outside_are_those_of_the_function() -> None:
    """Its backward goes below the level: a side exit."""
    compiled = magneto.compile(of_a_trained_weight)
    for _ in range(2):
        results = []
        for call in (of_a_trained_weight, compiled):
            weight = X.clone().requires_grad_()
            results.append(torch.autograd.grad(call(weight).sum(), weight)[0])
        torch.testing.assert_close(results[1], results[0])
    assert any("need gradients outside" in reason for reason in magneto.stats()["break_reasons"])


@pytest.mark.usefixtures("ours_alone")
def test_an_exit_in_a_method_ends_the_segment_in_front() -> None:
    class Printing(Plain):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            print("backward")
            return gradient * ctx.factor

    def program(x: Tensor) -> Tensor:
        y = x.sin()
        return grad(lambda x: Printing.apply(x).sum())(y) + y

    compiled = magneto.compile(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), program(X))
    assert magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


IMPORTING = """
import sys
import torch
import magneto
from torch.func import grad, vjp

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        seen.add(sys._getframe().f_code.co_name)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def total(x):
    return Double.apply(x).sum()

def pulled(x):
    result, pull = vjp(total, x)
    return pull(torch.ones_like(result))[0]

seen = set()
magneto.compile(torch.sin)(torch.ones(1))
sys.meta_path.insert(0, Finder)
for program in (pulled, grad(total)):
    sys.modules.pop("torch.nested._internal.nested_tensor", None)
    print(magneto.compile(lambda x: program(x), fullgraph=True)(torch.ones(2)).tolist(), seen)
"""


def test_what_pytorch_imports_on_the_way_is_no_part_of_the_program() -> None:
    done = python("-c", IMPORTING)
    assert done.stdout == "[2.0, 2.0] {'find_spec'}\n" * 2, done.stderr
