"""For each break reason (src/capture/breaks.def) a program that has it: its page in docs/breaks shows the function, and
tests/test_break_pages.py runs it."""

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
    """A function with the break, and what makes its arguments."""

    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]] = lambda: (torch.ones(3),)
    settings: dict[str, Any] = {}


def data_dependent_value(x):
    scale = x.sum().item()  # <- here
    return x * scale


def data_dependent_branch(x):
    if x.sum() > 0:  # <- here
        return x + 1
    return x - 1


def opaque_call(x):
    now = time.perf_counter()  # <- here
    return x + now * 0


def input_output(x):
    y = x + 1
    print(end="")  # <- here
    return y * 2


@magneto.disable
def helper(x):
    return x + 1


def disabled_function(x):
    return helper(x.sin()) * 2  # <- here


def opaque_object(x, lock):
    with lock:  # <- here
        return x + 1


def unsupported_tensor(x):
    return x * 2  # <- here, where x is sparse


@torch.library.custom_op("break_programs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def unsupported_operator(x):
    return twice(x) + 1  # <- here: it has no register_fake


def data_access(x):
    return x.data_ptr() % 64, x + 1  # <- here


def mutation(x, parameter):
    parameter.data = x + 1  # <- here
    return parameter * 2


def autograd_call(x):
    loss = (x * 2).sum()
    loss.backward()  # <- here
    return loss


async def later(x):
    return x + 1


def generator(x):
    coroutine = later(x)  # <- here
    coroutine.close()
    return x


def printing(value):
    print(end="")
    return value


def callback(x):
    order = sorted([2, 1], key=printing)  # <- here: it calls back a function that breaks
    return x * order[0]


class Temporary:
    def __del__(self):
        pass


def finalizer(x):
    temporary = Temporary()  # <- here
    return x + 1


def exception(x, error):
    try:
        raise error  # <- here: it is one from outside, and raising changes it
    except ValueError:
        return x + 1


def forced(x):
    return x + 1


EXAMPLES: dict[str, Example] = {
    "DataDependentValue": Example(data_dependent_value),
    "DataDependentBranch": Example(data_dependent_branch),
    "OpaqueCall": Example(opaque_call),
    "InputOutput": Example(input_output),
    "DisabledFunction": Example(disabled_function),
    "OpaqueObject": Example(opaque_object, lambda: (torch.ones(3), threading.Lock())),
    "UnsupportedTensor": Example(unsupported_tensor, lambda: (torch.ones(3).to_sparse(),)),
    "UnsupportedOperator": Example(unsupported_operator),
    "DataAccess": Example(data_access),
    "Mutation": Example(mutation, lambda: (torch.ones(3), torch.nn.Parameter(torch.ones(3)))),
    "AutogradCall": Example(autograd_call, lambda: (torch.ones(3, requires_grad=True),)),
    "Generator": Example(generator),
    "Callback": Example(callback),
    "Finalizer": Example(finalizer),
    "Exception": Example(exception, lambda: (torch.ones(3), ValueError())),
    "Forced": Example(forced, settings={"exit_every": 1}),
}

# Those without a program, and why.
WITHOUT = {
    "OpaqueIterator": "a loop that goes on behind an earlier break is no break of its own: it is not counted",
    "ChangingValue": "it stands behind an earlier break, once `cache_size_limit` is near: it is not counted",
    "Opcode": "no instruction that Python 3.11 and 3.12 make for functions is known to have it",
    "Rebuild": "it depends on what is alive at an earlier break: an object that only C code can make",
}


def source(function: Callable[..., Any]) -> str:
    """As a page shows it."""
    return textwrap.dedent(inspect.getsource(function)).rstrip()
