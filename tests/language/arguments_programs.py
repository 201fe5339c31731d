"""What is passed in and which state is around: aliasing, dtypes, layouts, grad modes, autocast, random state, defaults."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()
TWICE = (lambda: (vector(),),) * 2


def each(*makers: Any) -> Any:
    return tuple((lambda make=make: make()) for make in makers)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    x = vector()
    return x, x


def views() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(8.0)
    return x[:6], x[2:]


# -- arguments and their memory -----------------------------------------------------------------------------------------


@programs(*each(pair, lambda: (vector(), vector()), pair))
def same_tensor_as_two_arguments(x, y):
    x.add_(1)
    y.mul_(2)
    return x + y, x is y, x


@programs(*each(views, lambda: (vector(), vector()), views))
def views_of_one_storage_are_changed(x, y):
    x.add_(1)
    z = y * 2
    y.zero_()
    return x * 1, z


@programs(*each(lambda: ((t := torch.arange(6.0)), t.reshape(2, 3)), lambda: (vector(), torch.ones(2, 3))))
def base_and_its_view(x, m):
    m[0] += 10
    x[-1] = 0
    return x.sum(), m.sum(1), m.t() * 2


@programs(*[lambda: (torch.arange(6.0).reshape(2, 3).t(), torch.arange(10.0)[::2], torch.ones(1).expand(4))] * 2)
def arguments_that_are_not_contiguous(a, b, c):
    return a + 1, b * 2, c - 1, a.contiguous(), a.reshape(-1), torch.empty_like(a).stride(), a.is_contiguous()


@programs(*[lambda: (torch.empty(0, 3), torch.tensor(2.0), torch.ones(1, 0, 2))] * 2)
def arguments_without_elements_and_dimensions(a, b, c):
    return a + b, a.sum(), c.sum(1), torch.cat([a, torch.ones(1, 3)]), b.item() if False else b * 2, a.mean(), c.shape


@programs(*[lambda: (torch.tensor([1 + 2j, 3 - 1j]),)] * 2)
def complex_arguments(x):
    return x * 2, x.abs(), x.conj() * x, x.real + 1, torch.view_as_real(x), x.conj(), x.is_conj(), x.imag.sum()


@programs(
    *each(*[lambda d=d: (vector().to(d),) for d in (torch.bfloat16, torch.float16, torch.float64, torch.bfloat16)])
)
def arguments_of_half_precision(x):
    return x * 2, (x / 3).sum(), x.softmax(0), x + 1.5, x @ x, x.to(torch.float32) + 1


@programs(*each(*[lambda d=d: (torch.arange(6).to(d),) for d in (torch.int8, torch.uint8, torch.int64, torch.bool)]))
def arguments_of_integer_types(x):
    return x + 1, x / 2, x * 1.5, x.sum(), x == 1, x.to(torch.float32).mean(), x.max()


@programs(*each(lambda: (vector(),), lambda: (vector().requires_grad_(),), lambda: (vector(),)), breaks=True)
def argument_that_sometimes_needs_gradients(x):
    y = (x * 2).sum()
    return y, y.requires_grad, x.is_leaf, torch.is_grad_enabled()


@programs(*[lambda: (torch.nn.Parameter(vector()), [torch.nn.Parameter(vector())])] * 2)
def parameters_as_arguments(p, many):
    return (p * 2).detach(), isinstance(p, torch.nn.Parameter), many[0].detach() + 1, type(p * 1) is torch.Tensor


@programs(*[lambda: ({"a": [vector(), (vector(), {"b": vector()})]}, 2, None, "text", torch.float64)] * 2)
def containers_in_containers(tree, number, nothing, text, dtype):
    a, (b, inner) = tree["a"]
    inner["c"] = a + b
    tree["a"].append(number)
    return inner["b"].to(dtype), nothing is None, text * number, len(tree["a"])


@programs(*each(lambda: (vector(), True), lambda: (vector(), 1), lambda: (vector(), 1.0), lambda: (vector(), -0.0)))
def numbers_that_are_equal_but_of_other_types(x, n):
    return x * n, type(n).__name__, n is True, torch.tensor(n).dtype


@programs(*each(lambda: (vector(), float("nan")), lambda: (vector(), float("inf")), lambda: (vector(), float("nan"))))
def numbers_that_are_not_finite(x, n):
    return x * n, n == n, max(n, 1.0) == n


@programs(*each(*[lambda n=n: (vector(), n) for n in (2**40, 2**70, -1, 0)]))
def large_integers(x, n):
    return n * n, n % 7, x + (n % 5), n.bit_length()


@programs(
    *each(*[lambda s=s: (vector(), s) for s in (slice(1, 3), slice(None, None, 2), slice(-2, None), slice(1, 3))])
)
def slice_as_an_argument(x, s):
    return x[s], s.start, [1, 2, 3, 4][s], s == slice(1, 3)


@programs(*each(*[lambda r=r: (vector(), r) for r in (range(3), range(0, 6, 2), range(0, 5, 2), range(3))]))
def range_as_an_argument(x, r):
    return x[list(r)], len(r), r.stop, 2 in r, [i for i in r], sum(r), r[-1]


@programs(*[lambda: (vector(), slice(torch.tensor(1), None), slice(torch.tensor(4), None))] * 2, breaks=True)
def slices_of_tensors_as_arguments(x, s, t):
    return x[s], x[t]


@programs(*each(*[lambda d=d: (vector(), d) for d in (torch.device("cpu"), "cpu", torch.device("meta"), None)]))
def device_as_an_argument(x, d):
    y = torch.zeros(2, device=d)
    return y.device, x.to("cpu") + 1, str(d), d == torch.device("cpu")


@programs(*each(*[lambda s=s: (vector(), s) for s in (torch.Size([2, 3]), (3, 2), [6], torch.Size([2, 3]))]))
def size_as_an_argument(x, s):
    return x.view(s), x.view(*s), len(s), tuple(s), torch.zeros(s).shape == x.view(s).shape


@programs(*[lambda: (vector(), torch.Generator().manual_seed(4))] * 2, breaks=True)
def generator_as_an_argument(x, generator):
    return torch.rand(3, generator=generator) + x[:3], generator.initial_seed()


@programs(*[lambda: (vector(), torch.nn.functional.relu, torch.sin, torch.Tensor.cos, len)] * 2)
def functions_as_arguments(x, *functions):
    return [function(x - 3) for function in functions]


@programs(*[lambda: (vector(), (x for x in (1, 2, 3)))] * 2, breaks=True)
def generator_object_as_an_argument(x, numbers):
    return x + next(numbers), list(numbers)


@programs(*[lambda: (vector(), iter([1, 2, 3]), zip([1], [2], strict=False), enumerate("ab"))] * 2, breaks=True)
def iterators_as_arguments(x, numbers, pairs, letters):
    return x + next(numbers), list(pairs), [i for i, _ in letters], list(numbers)


@programs(*[lambda: (vector().to_sparse(),)] * 2, breaks=True)
def sparse_argument(x):
    return x.to_dense() + 1, (x * 2).to_dense(), x.is_sparse


@programs(*[lambda: (torch.quantize_per_tensor(vector(), 0.1, 0, torch.quint8),)] * 2, breaks=True)
def quantised_argument(x):
    return x.dequantize() + 1, x.is_quantized


@programs(*[lambda: (torch.ones(2, 3).to(memory_format=torch.contiguous_format), torch.ones(1, 2, 3, 3))] * 2)
def memory_formats(x, image):
    last = image.to(memory_format=torch.channels_last)
    return (
        (last * 2).stride(),
        last.is_contiguous(memory_format=torch.channels_last),
        torch.empty_like(last).stride(),
        x,
    )


# -- results --------------------------------------------------------------------------------------------------------------


@programs(*TWICE)
def one_result_in_many_places(x):
    y = x * 2
    return y, [y, (y,)], {"y": y}, y[1:], y.view(2, 3), x


@programs(*TWICE)
def nothing_is_returned(x):
    x.add_(1)


@programs(*TWICE)
def argument_and_its_detached_self(x):
    y = x.detach()
    y.add_(1)
    return y, x, y is x, x.data + 1


@programs(*[lambda: (vector(), torch.zeros(6), torch.zeros(0))] * 2)
def results_written_with_out(x, y, z):
    torch.add(x, 1, out=y)
    torch.mul(x, 2, out=z)
    result = torch.sub(x, y, out=y)
    return result is y, z.shape


@programs(*TWICE)
def named_tuples_of_torch(x):
    values, indices = x.sort(descending=True)
    top = torch.topk(x, 2)
    return values, indices, top, top.values + 1, type(top).__name__, x.max(0).indices, torch.return_types.max


# -- modes ----------------------------------------------------------------------------------------------------------------


@programs(*[lambda: (vector().requires_grad_(),)] * 2)
def grad_modes_nested(x):
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        with torch.set_grad_enabled(False):
            c = x * 4
    return a.requires_grad, b.requires_grad, c.requires_grad, torch.is_grad_enabled(), b.detach()


@programs(*[lambda: (vector(),)] * 2, breaks=True)
def inference_mode_inside(x):
    with torch.inference_mode():
        y = x * 2
    with torch.inference_mode(False):
        z = x + 1
    return y, z, y.is_inference(), torch.is_inference_mode_enabled()


@programs(*[lambda: (vector().requires_grad_(),)] * 2)
def grad_mode_as_a_decorator(x):
    @torch.no_grad()
    def quiet(v):
        return v * 2

    @torch.enable_grad()
    def loud(v):
        return v * 3

    return quiet(x), loud(x).detach(), quiet(x).requires_grad


@programs.made(*TWICE * 2)
def grad_mode_of_the_caller():
    calls = []

    def program(x):
        return x * 2, torch.is_grad_enabled()

    def alternate(x):
        calls.append(x)
        with torch.set_grad_enabled(len(calls) % 2 == 0):
            return program(x)

    return alternate


@programs(*[lambda: (torch.ones(2, 3), torch.ones(3, 2))] * 2)
def autocast_regions(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = a @ b
        with torch.autocast("cpu", enabled=False):
            z = a @ b
        w = y.softmax(-1)
    return y, z, w.dtype, torch.is_autocast_enabled("cpu")


@programs(*[lambda: (torch.ones(2, 3),)] * 2)
def autocast_as_a_decorator(x):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def product(v):
        return v @ v.t()

    return product(x), torch.get_autocast_dtype("cpu")


@programs(*[lambda: (torch.ones(2, 3),)] * 2)
def mode_is_left_by_an_exception(x):
    try:
        with torch.no_grad(), torch.autocast("cpu"):
            raise ValueError("out")
    except ValueError:
        return x @ x.t(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


@programs(*TWICE)
def modes_on_an_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        y = x.outer(x) @ x
    return y, torch.is_grad_enabled()


@programs(*TWICE, breaks=True)
def break_inside_a_grad_mode(x):
    with torch.no_grad():
        y = x * 2
        print(torch.is_grad_enabled())
        z = y + 1
    return z, torch.is_grad_enabled()


@programs(*TWICE, breaks=True)
def break_inside_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.outer(x) @ x
        print(y.dtype)
        z = x.outer(x) @ x
    return y, z, (x.outer(x) @ x).dtype


@programs(*TWICE, breaks=True)
def default_dtype_is_changed_inside(x):
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(2), torch.tensor(1.5), torch.get_default_dtype()
    finally:
        torch.set_default_dtype(torch.float32)
    return y, torch.ones(2) + x[:2]


@programs(*TWICE, breaks=True)
def device_context_inside(x):
    with torch.device("meta"):
        y = torch.ones(2)
    with torch.device("cpu"):
        z = torch.zeros(2)
    return y.device, z, torch.ones(1).device


# -- random numbers -------------------------------------------------------------------------------------------------------


@programs(*TWICE * 2)
def random_numbers_in_eagers_order(x):
    a = torch.rand(3)
    b = torch.nn.functional.dropout(x, 0.5)
    c = torch.randn_like(x) + torch.randint(0, 9, (6,))
    return a, b, c, torch.randperm(5), torch.bernoulli(torch.full((4,), 0.5)), x.clone().uniform_()


@programs(*TWICE)
def random_state_is_saved_and_restored(x):
    state = torch.get_rng_state()
    a = torch.rand(2)
    torch.set_rng_state(state)
    return a, torch.rand(2), torch.rand(2) * x[:2]


@programs(*TWICE, breaks=True)
def random_state_is_forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        a = torch.rand(2)
    return a, torch.rand(2), x + 1


@programs(*TWICE, breaks=True)
def break_between_random_numbers(x):
    a = torch.rand(2)
    print(a.sum().item() < 3)
    return a, torch.rand(2), torch.dropout(x, 0.5, True)


@programs(*TWICE)
def random_numbers_in_a_branch(x):
    if x.shape[0] > 3:
        x = x + torch.rand(6)
    for _ in range(3):
        x = x * torch.rand(())
    return x


# -- tensors ----------------------------------------------------------------------------------------------------------------


@programs(*[lambda: (torch.arange(12.0).reshape(3, 4),)] * 2)
def indexing_by_anything(x):
    i = torch.tensor([2, 0])
    mask = torch.tensor([True, False, True])
    return (
        x[1],
        x[:, -1],
        x[..., None].shape,
        x[i],
        x[i, i],
        x[mask.long()],
        x[1:, ::2],
        x[None, 0],
        x[-1, [0, 2]],
        x[()],
    )


@programs(*[lambda: (torch.arange(12.0).reshape(3, 4),)] * 2)
def item_assignment_by_anything(x):
    x[0] = 1
    x[:, 1] = torch.tensor([7.0, 8.0, 9.0])
    x[..., -1] += 5
    x[[0, 2], [0, 2]] = -1
    x[1:, :2] *= 2
    x[x.new_zeros(3, dtype=torch.bool)] = 3
    return x * 1


@programs(*[lambda: (torch.arange(12.0).reshape(3, 4),)] * 2, breaks=True)
def boolean_mask_has_a_size_of_its_own(x):
    y = x[x > 4]
    return y, y.shape, torch.nonzero(x > 9), torch.where(x > 4, x, 0)


@programs(*TWICE)
def dtype_promotion_of_all_kinds(x):
    i = torch.arange(6)
    return (
        x + i,
        i / 2,
        i // 2,
        i * 1.5,
        i + True,
        (i > 2) + (i > 3),
        i + torch.tensor(1.5),
        x.double() * x,
        i.byte() + i,
    )


@programs(*TWICE)
def attributes_of_tensors(x):
    y = x.reshape(2, 3)
    return y.T, y.mT, y.ndim, y.dtype, y.device, y.shape, y.is_leaf, y.grad, y.numel(), y.element_size(), len(y)


@programs(*TWICE)
def views_of_views_are_changed(x):
    y = x.clone()
    a = y.view(2, 3)
    a[0].t().add_(1)
    a.diagonal().zero_()
    y.unflatten(0, (3, 2)).select(1, 0).mul_(3)
    for part in y.chunk(2):
        part.neg_()
    return y, a, a._base is y


@programs(*TWICE)
def in_place_methods_give_their_tensor(x):
    y = x.clone()
    return y.add_(1).mul_(2) is y, y.clamp_(max=6), y.copy_(x) is y, y.fill_(3), y.zero_().sum()


@programs(*TWICE, breaks=True)
def size_of_a_tensor_is_changed(x):
    y = x.clone()
    y.unsqueeze_(0)
    a = y.shape
    y.squeeze_().resize_(3)
    return a, y, y.shape


@programs(*TWICE)
def constructors(x):
    return (
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([x.shape[0], 2.5]),
        torch.full((2,), 7),
        torch.eye(2),
        torch.linspace(0, 1, 3),
        torch.arange(1, 4, 0.5),
        x.new_tensor([1, 2]),
        x.new_ones(2, dtype=torch.int32),
        torch.zeros_like(x, dtype=torch.bool),
        torch.empty(2, 0),
        torch.as_tensor([1.0, 2.0]),
        torch.asarray(x) is x,
    )
