"""What a thread or the process is set to, and programs read and set: context variables, switches, warnings' like."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from programs import Programs, vector
from torch.nn.attention import SDPBackend, sdpa_kernel

programs = Programs()
SCALE = contextvars.ContextVar("SCALE", default=2.0)
MODE: contextvars.ContextVar[Any] = contextvars.ContextVar("MODE")
LOCAL = threading.local()


@contextlib.contextmanager
def using(value: Any) -> Iterator[None]:
    token = MODE.set(value)
    try:
        yield
    finally:
        MODE.reset(token)


# -- context variables --------------------------------------------------------------------------------------------------


@programs()
def variable_with_a_default(x):
    return x * SCALE.get(), SCALE.get(7.0), MODE.get(None), MODE.get("none")


@programs()
def variable_without_a_value(x):
    try:
        MODE.get()
    except LookupError as error:
        return x + 1, error.args[0] is MODE
    return x


@programs.made()
def variable_that_changes_between_calls():
    variable = contextvars.ContextVar("variable", default=1)
    turns = iter([3, 3, "text", 4])

    def outer(x):
        return x * variable.get() if isinstance(variable.get(), int) else x - 1

    def program(x):
        variable.set(next(turns))
        return outer(x), variable.get()

    return program


@programs()
def variable_set_and_reset(x):
    token = SCALE.set(3.0)
    y = x * SCALE.get()
    SCALE.reset(token)
    return y, SCALE.get(), token.var is SCALE


@programs()
def variable_in_managers(x):
    with using("outer"):
        first = MODE.get()
        with using({"scale": x.sum()}):
            y = x * MODE.get()["scale"]
        second = MODE.get()
    return y, first, second, MODE.get("none")


@programs.made()
def variable_left_set():
    variable = contextvars.ContextVar("variable", default=None)
    seen = []

    def program(x):
        seen.append(variable.get())
        variable.set(x * 2)
        return variable.get() + 1

    program.watched = (seen,)
    return program


@programs.made()
def variable_read_elsewhere():
    variable = contextvars.ContextVar("variable", default=0)

    def program(x):
        tokens = [variable.set(1), variable.set(2)]
        variable.reset(tokens[1])
        return x + variable.get(), tokens, tokens[0].var is variable

    return program


@programs(breaks=True)
def variable_before_it_was_set(x):
    token = MODE.set("now")
    before = token.old_value
    MODE.reset(token)
    return x + 1, before is contextvars.Token.MISSING


@programs(breaks=True)
def variable_reset_twice(x):
    token = SCALE.set(3.0)
    SCALE.reset(token)
    try:
        SCALE.reset(token)
    except RuntimeError:
        return x * SCALE.get()
    return x


@programs(breaks=True)
def variable_reset_behind_an_exit(x):
    token = SCALE.set(5.0)
    y = x * float(x.sum())
    SCALE.reset(token)
    return y * SCALE.get()


@programs()
def variable_set_and_an_error(x):
    try:
        with using("mode"):
            raise ValueError(MODE.get())
    except ValueError as error:
        return x + 1, error.args, MODE.get("none")


# -- what a thread has ---------------------------------------------------------------------------------------------------


@programs.made()
def thread_local_that_changes():
    local = threading.local()
    turns = iter([2, None, 2.5, "text"])

    def change():
        turn = next(turns)
        if turn is not None:
            local.scale = turn
        elif hasattr(local, "scale"):
            del local.scale

    def program(x):
        first = x * getattr(local, "scale", 10)
        change()
        return first, getattr(local, "scale", None), sorted(vars(local))

    return program


@programs.made()
def thread_local_stack():
    local = threading.local()

    @contextlib.contextmanager
    def scaled(by):
        if not hasattr(local, "stack"):
            local.stack = []
        local.stack.append(by)
        try:
            yield
        finally:
            local.stack.pop()

    def program(x):
        with scaled(2), scaled(x.sum()):
            y = x * local.stack[0] + local.stack[-1] + len(local.stack)
        return y, local.stack, local.__dict__ is local.__dict__

    program.watched = (local.__dict__,)
    return program


@programs()
def thread_local_without_a_value(x):
    local = LOCAL
    try:
        return x * local.missing
    except AttributeError as error:
        return x, str(error), local.__class__ is threading.local


@programs()
def thread_local_deleted_twice(x):
    LOCAL.n = x
    del LOCAL.n
    try:
        del LOCAL.n
    except AttributeError as error:
        return x + 1, str(error)


# -- switches of the process --------------------------------------------------------------------------------------------


def query() -> tuple[torch.Tensor]:
    return (torch.arange(2.0 * 2 * 4 * 8).reshape(2, 2, 4, 8).sin(),)


@programs(query, query)
def attention_by_one_kernel(q):
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
        inside = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    return y, inside, torch.backends.cuda.flash_sdp_enabled()


@programs(query, query)
def attention_by_some_kernels(q):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            inside = torch.backends.cuda.mem_efficient_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    return y, inside, torch.backends.cuda.cudnn_sdp_enabled()


@programs()
def switch_of_another_device(x):
    before = torch.backends.cudnn.enabled
    with torch.backends.cudnn.flags(enabled=False):
        inside = torch.backends.cudnn.enabled
        y = x * 2
    return y, before, inside, torch.backends.cudnn.enabled


@programs.made()
def switch_left_set():
    def program(x):
        before = torch.backends.cuda.math_sdp_enabled()
        torch.backends.cuda.enable_math_sdp(not before)
        return x + 1, torch.backends.cuda.math_sdp_enabled()

    def around(x):
        try:
            return program(x), torch.backends.cuda.math_sdp_enabled()
        finally:
            torch.backends.cuda.enable_math_sdp(True)

    return around


@programs()
def switch_set_as_it_is(x):
    torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
    return x @ x


@programs(breaks=True)
def switch_that_kernels_look_at(x):
    with torch.backends.mkldnn.flags(enabled=False):
        y = F.conv1d(x.view(1, 1, 6), x[:3].view(1, 1, 3))
    return y * 2


# -- deques -------------------------------------------------------------------------------------------------------------


def with_deque(*items: Any, maxlen: int | None = None) -> Callable[..., Any]:
    from collections import deque

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def make() -> Callable[..., Any]:
            recent = deque(items, maxlen=maxlen)

            def program(x):
                return function(x, recent)

            program.watched = (recent,)
            return program

        programs.add(function.__name__, make, (lambda: (vector(),),) * 4, False)
        return function

    return decorate


@with_deque(1.0, 2.0)
def deque_that_is_read(x, recent):
    return (
        x * recent[-1] + sum(recent),
        len(recent),
        recent.maxlen,
        2.0 in recent,
        list(recent),
        [r + 1 for r in recent],
    )


@with_deque(1.0, 2.0, maxlen=2)
def deque_that_turns(x, recent):
    recent.append(recent[0] + 0.5)
    return x + recent[-1], recent.popleft()


@with_deque(maxlen=2)
def deque_of_tensors(x, recent):
    recent.append(x * 2)
    return torch.stack(list(recent)).sum(0)


@with_deque([1, 2], {"a": 3})
def deque_of_containers(x, recent):
    first, second = recent
    first.append(4) if len(first) < 3 else None
    recent.rotate(1)
    recent.rotate(-1)
    return x * len(first) + second["a"], recent[0] is first


# -- filters of warnings ------------------------------------------------------------------------------------------------


@programs()
def warnings_caught(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x / 2
        warnings.warn("hidden", stacklevel=1)
    return y, len(warnings.filters)


@programs()
def warnings_filtered(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hid+en", category=UserWarning)
        warnings.warn("hidden", stacklevel=1)
        return x / 2


@programs(breaks=True)
def warnings_recorded(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = x / 2
        warnings.warn("seen", stacklevel=1)
    return y, [str(each.message) for each in caught]


@programs(breaks=True)
def warnings_as_errors(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised", stacklevel=1)
        except UserWarning as error:
            return x + 1, error.args
    return x


@programs(breaks=True)
def warnings_in_front_of_filters(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("seen", stacklevel=1)
        warnings.simplefilter("ignore")
        warnings.warn("hidden", stacklevel=1)
    return x / 2, [str(each.message) for each in caught]


DEPTH = [0]


class Deeper:
    def __enter__(self):
        DEPTH[0] += 1
        return self

    def __exit__(self, kind, value, traceback):
        DEPTH[0] -= 1
        return kind is ValueError


@programs()
def stack_of_contexts(x):
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(Deeper())
        stack.callback(DEPTH.append, 4)
        y = x * DEPTH[0]
        stack.pop_all().close()
    return y, DEPTH[0], DEPTH.pop()


@programs(breaks=True)
def stack_of_contexts_that_swallows(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Deeper())
        raise ValueError(x.shape[0])
    return x + 1, DEPTH[0]


@programs()
def nothing_is_handled(x):
    try:
        raise KeyError("a")
    except KeyError:
        caught = sys.exception()
    return x + 1, caught.args, sys.exc_info(), sys.exception()


@programs(breaks=True)
def what_is_handled(x):
    try:
        raise KeyError("a")
    except KeyError:
        kind, value, _ = sys.exc_info()
        return x + 1, kind, value.args


@programs()
def namespace_made(x):
    made = types.SimpleNamespace(x=x, k=2, depth=DEPTH)
    made.k **= 2
    made.depth.append(made.k)
    made.made = made
    other = types.SimpleNamespace(**vars(made) | {"k": 5})
    del other.x
    return made.made.x * made.k, other.k, hasattr(other, "x"), made.depth is DEPTH, DEPTH.pop()


@programs()
def namespace_given_back(x):
    return types.SimpleNamespace(y=x + 1, n=x.shape[0]).__dict__


@programs(breaks=True)
def namespace_over_an_exit(x):
    made = types.SimpleNamespace(y=x * 2)
    print(end="")
    made.z = made.y + 1
    return made.z, vars(made)


@programs.made()
def identity_of_the_thread():
    tables = {threading.get_ident(): 5}

    def program(x):
        counts = tables.setdefault(threading.get_ident(), 0)
        return x * counts, threading.current_thread().name, len(tables)

    return program
