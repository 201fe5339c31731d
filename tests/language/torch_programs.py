"""What depends on data or on PyTorch's own state, and is captured all the same: seeds, masks, computed indices, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from programs import Programs, vector

programs = Programs()


def matrix() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) - 4


# -- the seed -----------------------------------------------------------------------------------------------------------


@programs()
def seed_in_front_of_all_that_draws(x):
    torch.manual_seed(7)
    return x + torch.rand_like(x), torch.randperm(5), F.dropout(x, 0.5), torch.rand(2)


@programs()
def seed_between_draws(x):
    torch.manual_seed(1)
    first = torch.rand(2)
    torch.manual_seed(1)
    second = torch.rand(2)
    third = torch.rand(2)
    return x * first[0], second, third, torch.equal(first, second) if False else None


@programs(
    lambda: (vector(), 3), lambda: (vector(), -5), lambda: (vector(), True), lambda: (vector(), 2**63), breaks=True
)
def seed_from_an_argument(x, seed):
    torch.manual_seed(seed)
    return x + torch.rand(6)


@programs()
def seed_gives_the_generator(x):
    generator = torch.manual_seed(seed=3)
    return generator is torch.default_generator, x + torch.rand(1), torch.rand(1)


@programs(breaks=True)
def seed_out_of_range(x):
    try:
        torch.manual_seed(2**70)
    except RuntimeError as error:
        return type(error), x + 1


@programs(*[lambda i=i: (vector(), torch.tensor([i])) for i in (1, 9, -9, 2)], breaks=True)
def seed_in_front_of_an_error(x, index):
    torch.manual_seed(3)
    drawn = torch.rand(2)
    try:
        found = x[index]
    except IndexError:
        found = None
    return found, drawn, torch.rand(2)


# -- masked assignment ----------------------------------------------------------------------------------------------------


@programs(*[lambda: (vector(), vector(-1.0))] * 2)
def assign_what_a_mask_selects(x, y):
    mask = x > 3
    x[mask] = y[mask]
    z = x * 2
    none = z > 100
    z[none] = x[none]
    return z


@programs(lambda: (matrix(), -matrix()), lambda: (matrix().T.contiguous().T, -matrix()))
def a_mask_of_rows(x, y):
    mask = x.sum(1) > 0
    x[mask] = y[mask]
    return x + 1


@programs(lambda: (matrix(),))
def a_mask_and_views(x):
    y = x[1:]
    z = x[:-1]
    mask = z > 0
    y[mask] = z[mask]
    return x, y, z


@programs(lambda: (matrix(),), breaks=True)
def a_mask_of_itself(x):
    mask = x > 0
    other = ~mask
    mask[other] = other[other]
    try:
        other[other] = mask[other]
    except RuntimeError as error:
        return mask, other, str(error)


@programs(lambda: (vector(), vector().double()), lambda: (vector(), vector().long()), breaks=True)
def a_mask_and_two_dtypes(x, y):
    mask = x > 3
    try:
        x[mask] = y[mask]
    except RuntimeError as error:
        return str(error)
    return x


@programs(lambda: (vector(), torch.arange(1.0)), lambda: (vector(), torch.arange(7.0)), breaks=True)
def a_mask_and_two_sizes(x, y):
    mask = x > 3
    try:
        x[mask] = y[mask]
    except (IndexError, RuntimeError) as error:
        return type(error)
    return x


@programs(lambda: (torch.ones(3).expand(4, 3), torch.zeros(4, 3)), breaks=True)
def a_mask_and_a_tensor_whose_elements_share_memory(x, y):
    mask = y == 0
    try:
        x[mask] = y[mask]
    except RuntimeError as error:
        return type(error)
    return x


@programs(lambda: (vector(), vector(2.0), [0]), breaks=True)
def a_mask_and_other_names(x, y, seen):
    mask = x > 3
    other = x < 2
    x[other] = y[mask][: int(other.sum())]
    x[mask] = seen.append(1) or y[mask]
    return x, seen


@programs(lambda: (vector().requires_grad_(), vector(2.0)), breaks=True)
def a_mask_and_gradients(x, y):
    z = x * 1
    mask = y > 3
    z[mask] = y[mask]
    return z


# -- an element at a computed index ---------------------------------------------------------------------------------------


@programs(lambda: (vector(),), lambda: (-vector(),))
def element_at_the_maximum(x):
    return x[x.argmax()] + 1, x[x.argmax() - 6] * 2


@programs(lambda: (matrix(),), lambda: (-matrix(),))
def rows_and_elements(x):
    row = x[x.sum(1).argmax()]
    return row.sum(), row[row.argmin()] + 1, row[None], row


@programs(
    *[
        lambda i=i, t=t: (matrix(), torch.tensor(i, dtype=t))
        for i, t in ((1, torch.int32), (2, torch.int64), (-3, torch.int8))
    ]
)
def element_at_an_argument(x, i):
    return x[i], x[i] * 2


@programs(*[lambda i=i: (torch.arange(60.0).view(3, 4, 5), torch.tensor(i), torch.tensor(-i)) for i in (1, 2)])
def elements_among_other_indices(x, i, j):
    return (
        x[i, j],
        x[:, i],
        x[..., j] + 1,
        x[None, 1:, j, i] * 2,
        x[i, ..., j],
        x[0, i, None],
        x[:, i, 1:][j] + 1,
        x[i][j, i],
    )


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 2)], breaks=True)
def elements_among_lists_and_masks(x, i):
    return x[[0, 1], i], x[i, x[0] > -3], x[i, True]


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 5)], breaks=True)
def too_many_indices(x, i):
    found = []
    for key in ((i, i, i), (i, ..., ...), (i, "a")):
        try:
            found.append(x[key])
        except (IndexError, TypeError) as error:
            found.append(str(error))
    return found


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 3, -4, 0)], breaks=True)
def element_out_of_range(x, i):
    y = x + 1
    try:
        return y[i] + 1
    except IndexError as error:
        return str(error)


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 2)], breaks=True)
def element_that_is_written(x, i):
    y = x[i]
    y.add_(100)
    x[0] = 7
    return y, x, y + 1


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 2)], breaks=True)
def element_of_what_is_written_afterwards(x, i):
    z = x * 2
    y = z[i]
    z[0:2].add_(y)
    return y, z


@programs(*[lambda i=i: (matrix(), torch.tensor(i)) for i in (1, 2)])
def element_of_what_was_written_before(x, i):
    z = x * 2
    z[1] = 5
    return z[i], z


@programs(lambda: (matrix(), torch.tensor(True)), lambda: (matrix(), torch.tensor(1, dtype=torch.uint8)), breaks=True)
def element_at_a_mask(x, i):
    return x[i]


@programs()
def older_constructors_of_data(x):
    rows = [[1, 2], [3, 4]]
    return (
        x * torch.Tensor([2]),
        torch.Tensor((1.5, True)),
        torch.FloatTensor(rows),
        torch.LongTensor([len(x), 7]),
        torch.BoolTensor([True, False]),
        torch.DoubleTensor(range(3)),
        torch.Tensor(np.arange(3)),
        torch.FloatTensor(np.ones(2, np.float32)),
        torch.Tensor(x) is x,
    )


@programs(lambda: (vector(),), lambda: (vector(),), lambda: (torch.ones(3),), lambda: (torch.ones(4),))
def older_constructors_of_sizes(x):
    made = torch.Tensor(2, 3).fill_(1), torch.Tensor(x.size()).zero_(), torch.IntTensor(x.size(0), 1).fill_(7)
    return made, torch.Tensor(), torch.LongTensor(len(x)).zero_(), torch.Tensor(0, 2)


@programs(breaks=True)
def older_constructors_of_something_else(x):
    texts = []
    for make in (
        lambda: torch.LongTensor(x),
        lambda: torch.Tensor(2.5),
        lambda: torch.Tensor({}),
        lambda: torch.Tensor("no"),
    ):
        try:
            texts.append(make())
        except (TypeError, ValueError) as error:
            texts.append(type(error))
    return x + 1, texts


@programs(lambda: (vector().requires_grad_(),))
def requires_grad_as_it_is(x):
    return x.requires_grad_() * 2, x.requires_grad_(requires_grad=True) is x, x.requires_grad_(True).detach()


@programs(lambda: (vector(),))
def requires_no_grad_as_it_is(x):
    return x.requires_grad_(False) * 2, x.requires_grad_(requires_grad=False) is x


@programs(lambda: (matrix().requires_grad_(), torch.tensor(1)), breaks=True)
def element_and_gradients(x, i):
    return x[i] * 2


@programs(lambda: (torch.tensor(3.0), torch.tensor(0)), breaks=True)
def element_of_a_number(x, i):
    try:
        return x[i]
    except IndexError as error:
        return str(error)


@programs(lambda: (vector(),), lambda: (vector(2.0),))
def view_of_another_dtype_of_a_view(x):
    y = x * 2
    return y[2:].view(torch.int32), y[1:][None].view(torch.int32) + 1, x[1:].view(torch.int32)


# -- lengths as data ------------------------------------------------------------------------------------------------------


def spoken() -> tuple[Any, ...]:
    return torch.arange(70.0).reshape(5, 2, 7).cos().log_softmax(-1), torch.tensor([[1, 2, 3], [4, 5, 6]])


@programs(spoken)
def ctc_loss_of_constant_lengths(logp, targets):
    lengths = torch.tensor([5, 5]), torch.tensor([3, 2])
    return [F.ctc_loss(logp, targets, *lengths, reduction=r, zero_infinity=True) for r in ("none", "sum", "mean")]


@programs(*[lambda n=n: (*spoken(), torch.tensor([5, n]), torch.tensor([3, 2])) for n in (5, 4, 1)])
def ctc_loss_of_lengths_as_arguments(logp, targets, inputs, outputs):
    return F.ctc_loss(logp.double(), targets, inputs, outputs)


@programs(*[lambda n=n: (*spoken(), torch.tensor([5, n])) for n in (2, 9, 3)], breaks=True)
def ctc_loss_of_lengths_out_of_range(logp, targets, outputs):
    try:
        return F.ctc_loss(logp, targets, torch.tensor([5, 5]), outputs)
    except RuntimeError as error:
        return type(error)


# -- gradients inside -----------------------------------------------------------------------------------------------------


@programs()
def gradient_of_what_is_used_twice(x):
    x = x.detach().requires_grad_()
    y = x.sin()
    (gradient,) = torch.autograd.grad((y * x + y * y + x).sum(), [x])
    return gradient


@programs()
def numbers_that_are_tensors(x):
    """Where an operator takes a number, PyTorch reads the value of a tensor without dimensions."""
    half = x[2] * 0.5
    y = torch.add(x, x * 2, alpha=half)
    y.add_(x, alpha=-half)
    z = x.addcdiv(x, x + 10, value=half.double()), torch.addcmul(x, x, y, value=half), x.sub(y, alpha=half + 1)
    m = torch.addmm(x[:, None], x[:, None], x[None], alpha=half, beta=-half)
    half.mul_(3)
    return y, z, m, torch._foreach_add([x, y], [x, x], alpha=half), torch.add(x, x, alpha=torch.tensor(2.0))


class Noted(torch.autograd.Function):
    calls: list[str] = []

    @staticmethod
    def forward(ctx, x):
        Noted.calls.append("forward")
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        Noted.calls.append("backward")
        return gradient * 5


@programs(breaks=True)
def gradient_through_code_with_effects(x):
    Noted.calls.clear()
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(Noted.apply(x).sum(), [x])
    return gradient, list(Noted.calls)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 20


@programs(breaks=True)
def gradient_through_a_custom_function(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(Doubled.apply(x).sum(), [x])[0]


@programs.made(breaks=True)
def gradient_of_a_tensor_with_a_hook():
    parameter = torch.nn.Parameter(torch.ones(6))
    seen: list[float] = []

    def hook(gradient):
        seen.append(float(gradient.sum()))
        return gradient * 2

    parameter.register_hook(hook)

    def program(x):
        (gradient,) = torch.autograd.grad((parameter * x).sum(), [parameter])
        return gradient, list(seen)

    return program


# -- custom functions -----------------------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """With a context that is set up behind the forward."""

    @staticmethod
    def forward(x, factor=2.0, *others):
        return x * factor + sum(others)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, factor, *others = inputs
        ctx.factor, ctx.count = factor, len(others)
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx, gradient):
        x, output = ctx.saved_tensors
        return gradient * ctx.factor + x - output, None, *[None] * ctx.count


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x.view_as(x), x * y, y.long()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second, third):
        x, y = ctx.saved_tensors
        return (0 if first is None else first) + second * y, second * x


class Written(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def leaf() -> torch.Tensor:
    return vector().requires_grad_()


def applied(x):
    return (
        Scaled.apply(x),
        Scaled.apply(x, 3.0),
        Scaled.apply(x, 1.0, 2, 3),
        Written.apply(x + 1),
    )


@programs(lambda: (vector(),), lambda: (vector(),))
def context_set_up_without_gradients(x):
    return applied(x)


@programs(lambda: (leaf(),), lambda: (leaf(),))
def context_set_up_with_gradients(x):
    return applied(x)


@programs(lambda: (vector(),), lambda: (leaf(),), breaks=True)
def context_set_up_for_arguments_by_name(x):
    try:
        return Scaled.apply(x, factor=4.0)
    except TypeError as error:  # as some versions of PyTorch do
        return str(error)


class GivenBack(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x, x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, first, second):
        return first, second


class GivenBackAndSaved(GivenBack):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


@programs(lambda: (vector(), vector(2.0)), lambda: (leaf(), vector(3.0)), breaks=True)
def context_set_up_and_an_argument_given_back(x, y):
    results = GivenBack.apply(x, y)
    try:
        GivenBackAndSaved.apply(x, y)
    except RuntimeError as error:
        return results, str(error)


@programs(lambda: (vector(), vector(2.0)), lambda: (leaf(), vector(3.0)), lambda: (leaf(), leaf()))
def context_set_up_and_several_results(x, y):
    return Split.apply(x, y)


@programs(lambda: (leaf(),), lambda: (leaf(),), breaks=True)
def context_set_up_and_a_backward_pass(x):
    y = Scaled.apply(x, 3.0) * 2
    y.sum().backward()
    return x.grad, y


@programs(lambda: (vector(),), lambda: (leaf(),), breaks=True)
def context_set_up_for_too_few_arguments(x):
    try:
        return Scaled.apply()
    except TypeError as error:
        return str(error)


class Tensors(torch.autograd.Function):
    @staticmethod
    def forward(x, weight=torch.ones(6)):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


@programs(lambda: (vector(),), lambda: (leaf(),), breaks=True)
def context_set_up_with_a_tensor_as_default(x):
    return Tensors.apply(x), Tensors.apply(x, x * 2)


@programs.made(lambda: (vector(),), lambda: (leaf(),), breaks=True)
def context_set_up_with_effects():
    seen: list[int] = []

    class Effects(torch.autograd.Function):
        @staticmethod
        def forward(x):
            seen.append(1)
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append(len(inputs))

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def program(x):
        return Effects.apply(x), list(seen)

    return program


# -- what hangs on tensors ------------------------------------------------------------------------------------------------


@programs.made(lambda: (vector(),), lambda: (vector(2.0),), lambda: (vector(),))
def attributes_of_tensors_from_outside():
    kept = vector()

    def program(x):
        x.tag = "in"
        kept.count = getattr(kept, "count", 0) + 1
        made = kept + 1
        made.extra = [1, x.tag]
        return made, made.extra, hasattr(made, "tag"), kept.count

    program.watched = (kept,)
    return program


class Labelled(torch.Tensor):
    def __new__(cls, data, label="?"):
        made = torch.as_tensor(data).as_subclass(cls)
        made.label = label
        return made

    def __init__(self, data, label="?"):
        self.labels = [label]


class Bare(torch.Tensor):
    pass


@programs()
def tensors_of_a_class_that_is_called(x):
    labelled = Labelled(x, "a")
    return labelled * 2, labelled.label, labelled.labels, Bare(x * 2) + 1, type(Bare(x)).__name__


@programs(lambda: (matrix(),))
def return_types_made_and_unpacked(x):
    found = torch.max(x, dim=1)
    made = torch.return_types.max((found.values + 1, found.indices))
    leaves, structure = torch.utils._pytree.tree_flatten({"r": found, "s": [made, torch.topk(x, 2)]})
    again = torch.utils._pytree.tree_unflatten([leaf * 2 for leaf in leaves], structure)
    return made, made.values, type(again["r"]).__name__, again


def needs_grad():
    return (vector().requires_grad_(),)


@programs(needs_grad, needs_grad)
def histories(x):
    y = x * 2
    z = y.detach()
    leaf = z.requires_grad_()
    with torch.no_grad():
        w = y * 2
    known = [y.grad_fn is None, w.grad_fn is None, leaf.grad_fn is not None, y.is_leaf, w.is_leaf, leaf.is_leaf]
    return y + 1 if y.grad_fn is not None else y, known


@programs(needs_grad, needs_grad, breaks=True)
def histories_that_only_the_run_knows(x):
    x.tag = "leaf" if x.grad_fn is None else "other"
    return x * 2, x.tag, x.is_leaf


class SameInEvaluation(torch.autograd.Function):
    @staticmethod
    def forward(x, training, saves):
        return x * 2 if training else x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.training = inputs[1]
        if inputs[2]:
            ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None, None


@programs()
def function_gives_its_argument_back_in_evaluation(x):
    y = SameInEvaluation.apply(x, False, False)
    return y + 1, y is x, SameInEvaluation.apply(x, True, True)


@programs(breaks=True)
def function_saves_the_argument_that_it_gives_back(x):
    try:
        return SameInEvaluation.apply(x, False, True) + 1
    except RuntimeError as error:
        return x, type(error)
