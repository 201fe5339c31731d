"""For each break reason (src/capture/breaks.def) a program that has it, and one that does the same without: its page in
docs/breaks shows both, and tests/test_break_pages.py runs them."""

from __future__ import annotations

import inspect
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import magneto


class Example(NamedTuple):
    """A function with the break, and what makes its arguments; the same without the break, and its arguments, where they
    are others."""

    function: Callable[..., Any]
    fixed: Callable[..., Any] | None = None
    arguments: Callable[[], tuple[Any, ...]] = lambda: (torch.ones(3),)
    fixed_arguments: Callable[[], tuple[Any, ...]] | None = None
    settings: dict[str, Any] = {}


def data_dependent_value(x):
    scale = x.sum().item()  # <- here
    return x * scale


def data_dependent_value_fixed(x):
    scale = x.sum()  # a tensor with one number
    return x * scale


def data_dependent_branch(x):
    factor = 1
    if x.sum() > 0:  # <- here: a float or an int; of two of one type, as of tensors alike, one is chosen in the graph
        factor = 2.5
    return x * factor


def data_dependent_branch_fixed(x):
    return x * torch.where(x.sum() > 0, 2.5, 1)


def opaque_call(x):
    now = time.perf_counter()  # <- here
    return x + now * 0


def opaque_call_fixed(x, now):  # the caller reads the clock
    return x + now * 0


def input_output(x):
    y = x + 1
    print(end="")  # <- here
    return y * 2


def input_output_fixed(x):  # the caller prints
    y = x + 1
    return y * 2


@magneto.disable
def helper(x):
    return x + 1


def disabled_function(x):
    return helper(x.sin()) * 2  # <- here


def plain_helper(x):
    return x + 1


def disabled_function_fixed(x):
    return plain_helper(x.sin()) * 2  # not marked


def opaque_object(x, lock):
    with lock:  # <- here
        return x + 1


def opaque_object_fixed(x):  # the caller holds the lock
    return x + 1


def unsupported_tensor(x):
    return x * 2  # <- here, where x is sparse


def unsupported_tensor_fixed(x):  # called with x.to_dense()
    return x * 2


@torch.library.custom_op("break_programs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def unsupported_operator(x):
    return twice(x) + 1  # <- here: it has no register_fake


@torch.library.custom_op("break_programs::twice_with_fake", mutates_args=())
def twice_with_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice_with_fake.register_fake
def twice_fake(x):
    return torch.empty_like(x)


def unsupported_operator_fixed(x):
    return twice_with_fake(x) + 1


def data_access(x):
    return hex(x.data_ptr()), x + 1  # <- here


def data_access_fixed(x):  # the caller asks for the address
    return x + 1


def mutation(x, parameter):
    parameter.data = x + 1
    return parameter * 2  # <- here


def mutation_fixed(x, parameter):
    with torch.no_grad():
        parameter.copy_(x + 1)
    return parameter * 2


def autograd_call(h):
    loss = h.sum()
    loss.backward()  # <- here, where h was computed before: its history is none of the graph's
    return loss


def autograd_call_fixed(x):
    loss = (x * 2).sum()
    loss.backward()
    return loss


async def later(x):
    yield x + 1


def generator(x):
    items = later(x)  # <- here: an asynchronous generator
    return x if items else None


def generator_fixed(x):  # the caller makes it
    return x


def printing(value):
    print(end="")
    return value


def callback(x):
    order = sorted([2, 1], key=printing)  # <- here: it calls back a function that breaks
    return x * order[0]


def callback_fixed(x):
    order = sorted([2, 1], key=lambda value: value)
    return x * order[0]


class Temporary:
    def __del__(self):
        pass


def finalizer(x):
    temporary = Temporary()  # <- here
    return x + 1


def finalizer_fixed(x, temporary):  # the caller makes it
    return x + 1


def exception(x, error):
    try:
        raise error  # <- here: it is one from outside, and raising changes it
    except ValueError:
        return x + 1


def exception_fixed(x):
    try:
        raise ValueError
    except ValueError:
        return x + 1


def forced(x):
    return x + 1


EXAMPLES: dict[str, Example] = {
    "DataDependentValue": Example(data_dependent_value, data_dependent_value_fixed),
    "DataDependentBranch": Example(data_dependent_branch, data_dependent_branch_fixed),
    "OpaqueCall": Example(opaque_call, opaque_call_fixed, fixed_arguments=lambda: (torch.ones(3), 1.0)),
    "InputOutput": Example(input_output, input_output_fixed),
    "DisabledFunction": Example(disabled_function, disabled_function_fixed),
    "OpaqueObject": Example(
        opaque_object,
        opaque_object_fixed,
        lambda: (torch.ones(3), threading.Lock()),
        lambda: (torch.ones(3),),
    ),
    "UnsupportedTensor": Example(
        unsupported_tensor,
        unsupported_tensor_fixed,
        lambda: (torch.ones(3).to_sparse(),),
        lambda: (torch.ones(3),),
    ),
    "UnsupportedOperator": Example(unsupported_operator, unsupported_operator_fixed),
    "DataAccess": Example(data_access, data_access_fixed),
    "Mutation": Example(mutation, mutation_fixed, lambda: (torch.ones(3), torch.nn.Parameter(torch.ones(3)))),
    "AutogradCall": Example(
        autograd_call,
        autograd_call_fixed,
        lambda: (torch.ones(3, requires_grad=True) * 2,),
        lambda: (torch.ones(3, requires_grad=True),),
    ),
    "Generator": Example(generator, generator_fixed),
    "Callback": Example(callback, callback_fixed),
    "Finalizer": Example(finalizer, finalizer_fixed, fixed_arguments=lambda: (torch.ones(3), Temporary())),
    "Exception": Example(
        exception,
        exception_fixed,
        lambda: (torch.ones(3), ValueError()),
        lambda: (torch.ones(3),),
    ),
    "Forced": Example(forced, settings={"exit_every": 1}),
}

# Those without a program, and why.
WITHOUT = {
    "OpaqueIterator": "a loop that goes on behind an earlier break is no break of its own: it is not counted",
    "ChangingValue": "it stands behind an earlier break, once `cache_size_limit` is near: it is not counted",
    "Opcode": 't"" strings of Python 3.14 have it; no instruction of older ones is known to',
    "Rebuild": "it depends on what is alive at an earlier break: an object that only C code can make",
}


def source(function: Callable[..., Any]) -> str:
    """As a page shows it."""
    return textwrap.dedent(inspect.getsource(function)).rstrip()
