"""Control flow, functions, closures, generators, exceptions, context managers, pattern matching, text."""

from __future__ import annotations

import contextlib
import dataclasses
import string
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()
X = torch.Tensor


def two(*values: Any) -> Any:
    """Makers of a call per value: (x, value)."""
    return tuple((lambda value=value: (vector(), value)) for value in values)


# -- conditions and loops ----------------------------------------------------------------------------------------------


@programs(*two(0, 1, 2, 0))
def if_elif_else(x, n):
    if n == 0:
        return x + 1
    elif n == 1:
        return x - 1
    else:
        return x * n


@programs(*two(0, 3))
def conditional_expression(x, n):
    return (x if n else -x), n and x, n or x, not n


@programs(*two(1, 5, 20))
def chained_comparison(x, n):
    return x * (0 < n < 10), 0 < n <= 5 != n, n == n == 1


@programs(*two(None, 1))
def none_tests(x, n):
    return x if n is None else x + n, n is not None


@programs(*two(3, 0))
def for_else(x, n):
    for i in range(5):
        if i == n:
            break
        x = x + i
    else:
        x = -x
    return x


@programs(*two(4, 7))
def while_else_continue(x, n):
    i = 0
    while i < n:
        i += 1
        if i % 2:
            continue
        x = x + i
        if i == 6:
            break
    else:
        x = x * 10
    return x, i


@programs(*two(2))
def nested_loops_with_break(x, n):
    out = []
    for i in range(4):
        for j in range(4):
            if j > i:
                break
            if (i + j) % n:
                continue
            out.append(x * i + j)
    return out


@programs()
def loop_variable_outlives_loop(x):
    for i, t in enumerate((x, x + 1)):
        pass
    return i, t


@programs()
def walrus(x):
    total = 0
    while (total := total + 2) < 7:
        x = x + total
    return x, [y := 3, y + 1], total


@programs()
def walrus_in_comprehension(x):
    found = [last := x * i for i in range(3)]
    return found, last


@programs()
def tuple_swap_and_chain(x):
    a, b = x, x + 1
    a, b = b, a
    c = d = a - b
    return a, b, c, d, c is d


@programs(*two([1, 2, 3], (4, 5)))
def starred_targets(x, values):
    first, *rest = values
    *init, last = values
    head, *middle, tail = (x, *values, x + 1)
    return first, rest, init, last, head, middle, tail


@programs()
def nested_unpacking(x):
    (a, (b, *c)), d = (x, (x + 1, 2, 3)), [4]
    [e] = d
    return a, b, c, d, e


@programs()
def starred_displays(x):
    a = [1, 2]
    d = {"k": x}
    return [*a, x, *a], (*a, 3), {*a, 5}, {**d, "j": 1, **{"k": 2}}


@programs(*two([1, 2], [1, 2, 3], [1]))
def unpack_wrong_count(x, values):
    a, b = values
    return x + a + b


@programs(*two([1], []))
def unpack_wrong_count_star(x, values):
    a, *b = values
    return x + a, b


@programs()
def augmented_targets(x):
    d = {"a": [x]}
    d["a"][0] = d["a"][0] + 1
    d["a"][0] *= 2
    d["a"] += [3]
    n = 7
    n //= 2
    n **= 2
    n <<= 1
    n |= 1
    n ^= 3
    n &= 0xFF
    n >>= 1
    n %= 5
    return d, n


@programs()
def slices(x):
    v = list(range(10))
    v[2:4] = [x, x, x]
    del v[-2:]
    v[::4] = [0] * len(v[::4])
    return v, v[1:-1:2], x[1:4], x[::2], v[slice(None, None, 3)]


@programs()
def delete_names(x):
    y = x + 1
    del y
    try:
        return y
    except UnboundLocalError as error:
        return str(error), x


@programs()
def unbound_in_branch(x):
    if x.dim() > 4:
        z = 1
    try:
        return z
    except UnboundLocalError as error:
        return type(error).__name__, error.args


@programs()
def assert_with_message(x):
    try:
        if x.dim() != 2:
            raise AssertionError(f"dim {x.dim()}")
    except AssertionError as error:
        return x, str(error)


@programs(breaks=True)
def branch_on_tensor(x):
    if x.sum() > 3:
        x = x + 1
    return x * 2


@programs(breaks=True)
def loop_on_tensor(x):
    n = 0
    while x.sum() < 1000:
        x = x * 2
        n += 1
    return x, n


@programs(breaks=True)
def item_in_arithmetic(x):
    n = int(x[0].item())
    return x + n, [x * i for i in range(n)]


@programs(breaks=True)
def print_in_loop(x):
    for i in range(3):
        x = x + i
        print("turn", i)
    return x


# -- functions -----------------------------------------------------------------------------------------------------------


def positional_only(a, /, b, *, c=3):
    return a + b * c


@programs()
def argument_kinds(x):
    return positional_only(x, 2), positional_only(x, b=1, c=2)


@programs()
def wrong_arguments(x):
    out = []
    for args, kwargs in (((), {}), ((x,), {}), ((x, 1, 2), {}), ((), {"a": x, "b": 1}), ((x, 1), {"z": 2})):
        try:
            out.append(positional_only(*args, **kwargs))
        except TypeError as error:
            out.append(str(error))
    return out


@programs()
def duplicate_keyword(x):
    try:
        return positional_only(x, 1, **{"c": 1}, **{"c": 2})
    except TypeError as error:
        return str(error)[-40:], x


@programs()
def defaults_are_shared(x):
    def add(v, store=[]):
        store.append(v)
        return store

    add(x)
    return add(x + 1), len(add(1))


@programs.made()
def default_kept_between_calls():
    def add(v, store=[]):
        store.append(1)
        return v * len(store)

    return lambda x: add(x)


@programs()
def keyword_defaults(x):
    def f(a, *, b=x, c=2):
        return a + b * c

    return f(1), f(1, c=3), f(1, b=2)


@programs()
def lambda_defaults(x):
    fs = [lambda v, i=i: v * i for i in range(3)]
    return [f(x) for f in fs]


@programs()
def late_binding(x):
    fs = [lambda v: v * i for i in range(3)]
    return [f(x) for f in fs]


@programs()
def args_kwargs_forwarding(x):
    def inner(*args, **kwargs):
        return args, kwargs

    def outer(*args, **kwargs):
        return inner(*args, extra=1, **kwargs)

    return outer(x, 1, k=x + 1)


@programs()
def function_attributes(x):
    def f(v):
        f.calls += 1
        return v + f.calls

    f.calls = 0
    return f(x), f(x), f.calls, f.__name__, f.__defaults__


@programs.made()
def attribute_of_outside_function():
    def f(v):
        f.calls = getattr(f, "calls", 0) + 1
        return v + f.calls

    return lambda x: f(x)


@programs()
def recursion_mutual(x):
    def even(n, v):
        return v if n == 0 else odd(n - 1, v + 1)

    def odd(n, v):
        return -v if n == 0 else even(n - 1, v * 2)

    return even(5, x), odd(4, x)


@programs()
def decorated_inside(x):
    def twice(f):
        def g(*a):
            return f(f(*a))

        return g

    @twice
    def step(v):
        return v * 2 + 1

    return step(x)


@programs()
def annotations(x):
    def f(a: int, b: str = "q") -> float:
        return x + a

    y: int = 3
    return f(y), f.__annotations__


@programs()
def nonlocal_counter(x):
    n = 0

    def up(by):
        nonlocal n
        n += by
        return n

    up(1)
    up(2)
    return x + n, n


@programs()
def nonlocal_two_levels(x):
    t = x

    def a():
        def b():
            nonlocal t
            t = t + 1

        b()
        b()

    a()
    return t


@programs.made()
def nonlocal_of_outside():
    count = 0

    def program(x):
        nonlocal count
        count += 1
        return x + count

    return program


@programs.made()
def nonlocal_written_by_callee():
    total = 0

    def add(n):
        nonlocal total
        total += n
        return total

    return lambda x: (x + add(1), add(2))


@programs.made()
def nonlocal_tensor_state():
    state = None

    def step(x):
        nonlocal state
        state = x if state is None else state + x
        return state * 1

    return lambda x: step(x)


@programs.made()
def closure_shared_by_two_functions():
    value = 1

    def read():
        return value

    def write(v):
        nonlocal value
        value = v

    def program(x):
        write(read() + 1)
        return x * read()

    return program


@programs.made()
def global_written():
    space = {"n": 0}
    exec("def program(x):\n    global n\n    n = n + 1\n    return x + n\n", space)
    return space["program"]


@programs.made()
def global_deleted():
    space = {"n": 0}
    exec(
        "def program(x):\n    global m\n    m = x\n    y = m + 1\n    del m\n    return y, 'm' in globals()\n",
        space,
    )
    return space["program"]


@programs()
def cell_deleted(x):
    y = x

    def read():
        return y

    del y
    try:
        return read()
    except NameError as error:
        return str(error)


@programs()
def immediately_called_lambda(x):
    return (lambda a, *b, **c: (a, b, c))(x, 1, k=2)


@programs()
def function_returns_functions(x):
    def make(k):
        def mul(v):
            return v * k

        return mul, lambda v: v + k

    mul, add = make(3)
    return mul(add(x))


@programs()
def call_through_containers(x):
    table = {"neg": torch.neg, "id": lambda v: v, "abs": abs}
    return [table[k](x) for k in sorted(table)]


@programs()
def builtin_as_argument(x):
    def apply(f, *a, **k):
        return f(*a, **k)

    return apply(max, 3, 5), apply(sorted, [2, 1], reverse=True), apply(torch.add, x, x, alpha=2)


# -- comprehensions and generators ---------------------------------------------------------------------------------------


@programs()
def comprehension_kinds(x):
    return (
        [i * x for i in range(3) if i],
        {i: x + i for i in range(2)},
        {i % 2 for i in range(5)},
        tuple(x * i for i in range(2)),
    )


@programs()
def comprehension_nested(x):
    return [(i, j) for i in range(3) for j in range(i) if i + j > 1], [[x[i] for i in range(j)] for j in range(2)]


@programs()
def comprehension_scope(x):
    i = 10
    out = [i for i in range(3)]
    fs = [lambda: i for i in range(2)]
    return i, out, [f() for f in fs], x


@programs()
def generator_expression_lazy(x):
    log = []

    def note(i):
        log.append(i)
        return x * i

    g = (note(i) for i in range(5))
    a = next(g)
    b = next(g)
    return a, b, log


@programs()
def generator_send(x):
    def echo():
        got = None
        while True:
            got = yield got
            if got is None:
                return "done"
            got = got + 1

    g = echo()
    next(g)
    a = g.send(x)
    try:
        g.send(None)
    except StopIteration as stop:
        return a, stop.value


@programs()
def generator_throw(x):
    def worker():
        try:
            yield x
        except ValueError as error:
            yield x * 2, str(error)
        yield "end"

    g = worker()
    return next(g), g.throw(ValueError("v")), next(g)


@programs()
def generator_throw_uncaught(x):
    def worker():
        yield x

    g = worker()
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        return error.args, list(g)


@programs()
def generator_close_runs_finally(x):
    log = []

    def worker():
        try:
            yield x
            yield x
        finally:
            log.append("closed")

    g = worker()
    a = next(g)
    g.close()
    return a, log, list(g)


@programs()
def generator_return_value(x):
    def inner():
        yield 1
        return x + 1

    def outer():
        got = yield from inner()
        yield got * 2

    return list(outer())


@programs()
def yield_from_send_and_throw(x):
    def inner():
        try:
            a = yield 0
            yield a
        except KeyError:
            yield "caught"

    def outer():
        yield from inner()

    g = outer()
    next(g)
    return g.send(x), g.throw(KeyError())


@programs()
def yield_from_list_and_range(x):
    def g():
        yield from [x, x + 1]
        yield from range(2)

    return list(g())


@programs()
def generator_pipeline(x):
    def numbers(n):
        i = 0
        while i < n:
            yield i
            i += 1

    def scaled(it):
        for i in it:
            yield x * i

    return sum(scaled(numbers(4))), max(numbers(3))


@programs()
def generator_in_for_with_break(x):
    def forever():
        i = 0
        while True:
            yield i
            i += 1

    out = []
    for i in forever():
        if i > 3:
            break
        out.append(x + i)
    return out


@programs()
def generator_recursive(x):
    def walk(tree):
        if isinstance(tree, list):
            for t in tree:
                yield from walk(t)
        else:
            yield tree

    return list(walk([x, [x + 1, [2, [3]]], 4]))


@programs()
def generator_stop_iteration_inside(x):
    def bad():
        yield x
        raise StopIteration

    try:
        return list(bad())
    except RuntimeError as error:
        return str(error)


@programs()
def generator_returned(x):
    def g():
        for i in range(3):
            yield x + i

    it = g()
    first = next(it)
    return first, list(it)


@programs()
def generator_handles_exception_while_suspended(x):
    def g():
        try:
            raise ValueError("a")
        except ValueError:
            yield x
            yield x + 1

    return list(g())


@programs(breaks=True)
def generator_with_break_inside(x):
    def g():
        for i in range(3):
            print("in generator", i)
            yield x + i

    return list(g())


@programs()
def coroutine_driven_by_hand(x):
    async def work(v):
        return v + 1

    c = work(x)
    try:
        c.send(None)
    except StopIteration as stop:
        return stop.value * 2


@programs()
def coroutine_awaits(x):
    async def inner(v):
        return v * 2

    async def outer(v):
        a = await inner(v)
        return a + await inner(a)

    try:
        outer(x).send(None)
    except StopIteration as stop:
        return stop.value


@programs(breaks=True)
def async_for_and_with(x):
    class Manager:
        async def __aenter__(self):
            return x

        async def __aexit__(self, *a):
            return False

    async def numbers():
        for i in range(3):
            yield i

    async def work():
        async with Manager() as m:
            out = [m * i async for i in numbers()]
        async for i in numbers():
            out.append(i)
        return out

    try:
        work().send(None)
    except StopIteration as stop:
        return stop.value


# -- exceptions --------------------------------------------------------------------------------------------------------------


@programs(*two(0, 1, 2, 3))
def try_all_clauses(x, n):
    log = []
    try:
        log.append("try")
        if n == 1:
            raise ValueError("v")
        if n == 2:
            raise KeyError("k")
        if n == 3:
            return x, log
    except ValueError as error:
        log.append(error.args)
    except (KeyError, IndexError):
        log.append("lookup")
    else:
        log.append("else")
    finally:
        log.append("finally")
    return x + len(log), log


@programs()
def finally_overrides_return(x):
    def f():
        try:
            return x
        finally:
            return x + 1

    return f()


@programs()
def finally_swallows(x):
    def f():
        for _ in range(2):
            try:
                raise ValueError
            finally:
                break
        return x

    return f()


@programs()
def nested_try(x):
    log = []
    try:
        try:
            raise ValueError("inner")
        except KeyError:
            log.append("no")
        finally:
            log.append("f1")
    except ValueError as error:
        log.append(str(error))
    return x, log


@programs()
def exception_in_handler(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second")
    except KeyError as error:
        return repr(error), repr(error.__context__), error.__cause__, x


@programs()
def raise_from(x):
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError as error:
        return repr(error.__cause__), error.__suppress_context__, x


@programs()
def raise_from_none(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second") from None
    except KeyError as error:
        return error.__cause__, error.__suppress_context__, repr(error.__context__), x


@programs()
def reraise_bare(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise
    except ValueError as error:
        return error.args, x


@programs()
def bare_raise_outside(x):
    try:
        raise
    except RuntimeError as error:
        return str(error), x


@programs()
def exception_class_raised(x):
    try:
        raise LookupError
    except LookupError as error:
        return error.args, isinstance(error, Exception), x


@programs(breaks=True)
def exception_with_attributes(x):
    class E(Exception):
        def __init__(self, a, b):
            super().__init__(a)
            self.b = b

        def __str__(self):
            return f"E<{self.b}>"

    try:
        raise E(1, b=x)
    except E as error:
        return str(error), error.args, error.b


@programs()
def exception_name_is_unbound_after(x):
    try:
        raise ValueError
    except ValueError as error:
        kept = error
    try:
        error
    except UnboundLocalError:
        return type(kept).__name__, x


@programs()
def raise_non_exception(x):
    try:
        raise 3
    except TypeError as error:
        return str(error), x


@programs()
def exception_through_calls(x):
    def a(n):
        if n == 0:
            raise ValueError("deep")
        return a(n - 1)

    try:
        a(5)
    except ValueError as error:
        return str(error), x + 1


@programs()
def exception_group(x):
    try:
        raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    except* ValueError as group:
        first = [str(e) for e in group.exceptions]
    except* KeyError as group:
        second = [repr(e) for e in group.exceptions]
    return x, first, second


@programs()
def exception_group_rest_is_raised(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError("a"), OSError("b")])
        except* ValueError:
            x = x + 1
    except ExceptionGroup as rest:
        return x, [repr(e) for e in rest.exceptions]


@programs()
def exception_group_of_plain_exception(x):
    try:
        raise ValueError("plain")
    except* ValueError as group:
        got = group
    return x, type(got).__name__, [repr(e) for e in got.exceptions]


@programs()
def exception_notes(x):
    try:
        error = ValueError("a")
        error.add_note("note")
        raise error
    except ValueError as caught:
        return caught.__notes__, x


@programs()
def errors_of_operators(x):
    out = []
    for f in (
        lambda: 1 / 0,
        lambda: [][1],
        lambda: {}["k"],
        lambda: "a" + 1,
        lambda: None.nothing,
        lambda: int("q"),
        lambda: (1).real.missing,
        lambda: len(3),
        lambda: 3(),
        lambda: [1] < 1,
        lambda: -"a",
        lambda: next(iter([])),
        lambda: {[]: 1},
        lambda: range(0, 1, 0),
        lambda: "abc".index("z"),
        lambda: (1, 2)[5],
        lambda: [3].remove(4),
        lambda: float("x"),
        lambda: x.nothing,
        lambda: torch.nothing,
        lambda: undefined,
    ):
        try:
            out.append(f())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out, x + 1


@programs()
def tensor_errors_caught(x):
    out = []
    for f in (
        lambda: x + torch.ones(5),
        lambda: x @ torch.ones(3, 2),
        lambda: x.view(4),
        lambda: x[10],
        lambda: x.sum(3),
        lambda: torch.cat([x, torch.ones(2, 2)]),
        lambda: x.reshape(-1, 4),
    ):
        try:
            out.append(f())
        except (RuntimeError, IndexError) as error:
            out.append(type(error).__name__)
    return out, x * 2


@programs(*two(1, 2, 1))
def error_leaves(x, n):
    y = x + 1
    if n == 2:
        raise ValueError(f"bad {n}")
    return y


@programs(breaks=True)
def break_in_handler_and_finally(x):
    try:
        x = x + 1
        raise ValueError("v")
    except ValueError as error:
        print("handler", error)
        x = x * 2
    finally:
        print("finally")
        x = x - 1
    return x


@programs(breaks=True)
def stepped_instruction_raises(x):
    def bad():
        print("about to raise")
        raise ValueError("stepped")

    try:
        x = x + 1
        int(x.sum().item() > 0) / 0
    except ZeroDivisionError:
        x = x * 2
    try:
        bad()
    except ValueError as error:
        x = x - len(str(error))
    return x + 1


# -- context managers ---------------------------------------------------------------------------------------------------------


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind and kind.__name__, traceback is not None))
        return self.swallow


@programs(*two(0, 1, 2))
def with_normal_error_return(x, n):
    log = []

    def f():
        with Manager(log, swallow=n == 1):
            if n == 1:
                raise ValueError("w")
            if n == 2:
                return x + 1
        return x

    return f(), log


@programs()
def with_nested_and_parenthesised(x):
    log = []
    with Manager(log) as a, Manager(log, True) as b:
        with (
            Manager(log),
        ):
            raise KeyError
    return x, log, a is b


@programs()
def with_in_loop_and_break(x):
    log = []
    for i in range(4):
        with Manager(log):
            if i == 1:
                continue
            if i == 3:
                break
            x = x + i
    return x, log


@programs()
def with_not_a_manager(x):
    try:
        with 3:
            pass
    except TypeError as error:
        return str(error), x


class Enters:
    def __enter__(self):
        return self


class Leaves:
    def __exit__(self, *error):
        return False


class Waits:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return False


@programs()
def with_half_a_manager(x):
    texts = []
    for manager in (Enters(), Leaves(), Waits(), 3):
        try:
            with manager:
                pass
        except TypeError as error:
            texts.append(str(error))
    return texts, x


@programs()
def contextmanager_function(x):
    log = []

    @contextlib.contextmanager
    def section(name):
        log.append(name)
        try:
            yield x
        except ValueError:
            log.append("caught")
        finally:
            log.append("end")

    with section("a") as a:
        b = a + 1
    with section("b"):
        raise ValueError
    return b, log


@programs()
def formatted_by_a_formatter(x):
    n, formatter = 5, string.Formatter()
    text = formatter.format("{0:>4}|{a!r}|{b[1]}|{c.real}|{{}}|{0:{w}}", n, a="q", b=[1, 2], c=3, w=6)
    return (
        x + 1,
        text,
        formatter.vformat("{0}{1}", (1, 2), {}),
        [field for _, field, _, _ in formatter.parse("a{b}c{d}")],
    )


@programs()
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
        y = x + 1
    return y, log


@programs()
def suppress_and_nullcontext(x):
    with contextlib.suppress(KeyError):
        x = x + {}["k"]
    with contextlib.nullcontext(2) as n:
        x = x * n
    return x


@programs()
def closing(x):
    class Thing:
        closed = False

        def close(self):
            self.closed = True

    t = Thing()
    with contextlib.closing(t):
        x = x + 1
    return x, t.closed


@programs(breaks=True)
def break_inside_with(x):
    log = []
    with Manager(log):
        x = x + 1
        print("inside")
        x = x * 2
    return x, log


@programs(breaks=True)
def redirect_stdout(x):
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("hello")
    return x, out.getvalue()


# -- pattern matching ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    a: Any
    b: Any


class Shape:
    __match_args__ = ("kind",)

    def __init__(self, kind, size):
        self.kind = kind
        self.size = size


CASES = (
    lambda: [],
    lambda: [1],
    lambda: (1, 2),
    lambda: [1, 2, 3, 4],
    lambda: {"op": "add", "n": 2},
    lambda: {"op": "mul", "n": 3, "more": 1},
    lambda: {},
    lambda: Point(1, 2),
    lambda: Point(0, [5]),
    lambda: Shape("disc", 3),
    lambda: "text",
    lambda: 3.5,
    lambda: None,
    lambda: True,
    lambda: 7,
)


def match_everything(x, value):
    match value:
        case []:
            return x, "empty"
        case [one]:
            return x + one
        case (a, b) if a > b:
            return x - a
        case [a, b]:
            return x + a * b
        case [first, *rest]:
            return x * first, rest
        case {"op": "add", "n": n}:
            return x + n
        case {"op": str(op), **others}:
            return op, others, x
        case Point(a=0, b=[inner]):
            return x * inner
        case Point(a, b):
            return x * a + b
        case Shape("disc", size=size):
            return x + size
        case "text" | "other":
            return x, "text"
        case float(f):
            return x * f
        case None:
            return -x
        case bool():
            return x, "bool"
        case int() as n:
            return x + n
        case _:
            return "nothing"


for number, chosen in enumerate((CASES[:8], CASES[8:])):
    programs.add(
        f"match_everything_{number}",
        lambda: match_everything,
        tuple((lambda make=make: (vector(), make())) for make in chosen),
        breaks=False,
    )


@programs()
def match_fresh_objects(x):
    out = []
    for value in ({"k": x, "z": 1}, Point(x, 1), [x, Point(1, {"q": x})], {"k": 1}):
        match value:
            case {"k": torch.Tensor() as t, **rest}:
                out.append((t + 1, rest))
            case Point(a=t):
                out.append(t)
            case [_, Point(b={"q": t})]:
                out.append(t * 2)
            case _:
                out.append("none")
    return out


@programs(*two("a", "b", "c"))
def match_or_and_values(x, key):
    class Names:
        A = "a"

    match key:
        case Names.A:
            return x + 1
        case "b" | "d" as which:
            return x, which
    return x


@programs()
def match_nested_capture_and_guard(x):
    match {"shape": (2, 3), "data": [x, None]}:
        case {"shape": (h, w), "data": [t, None]} if h * w == t.numel():
            return t.view(h, w)
    return None


@programs(*two("add", "no"))
def match_mapping_missing_key(x, key):
    match {"op": "add"}:
        case {"op": k, "n": n}:
            return n
        case {"op": k} if k == key:
            return x + 1
        case {"op": k}:
            return x, k


@programs()
def match_class_positional_errors(x):
    try:
        match Point(1, 2):
            case Point(1, 2, 3):
                return 1
    except TypeError as error:
        return str(error), x


# -- text -------------------------------------------------------------------------------------------------------------------


@programs(*two(3, 42))
def f_strings(x, n):
    name = "w"
    return (
        f"{n}",
        f"{n:>5}|{n:05d}|{n:x}|{n / 3:.2f}|{n!r:>4}",
        f"{name!r} {name!s} {name!a}",
        f"{n=}",
        f"{x.shape} {x.dtype} {tuple(x.shape)}",
        f"{{{n}}} {'nested ' + f'{n:{n}d}'}",
        x,
    )


@programs()
def percent_and_format(x):
    return "%d %s %r %5.1f" % (1, "a", "b", 2.5), "{} {k!r} {}".format(1, 2, k="v"), "%(a)s" % {"a": 1}, x


@programs()
def text_of_objects(x):
    class A:
        def __repr__(self):
            return "A()"

        def __str__(self):
            return "str A"

        def __format__(self, spec):
            return f"fmt[{spec}]"

    a = A()
    return repr(a), str(a), f"{a}", f"{a:xy}", f"{a!r}", [a].__repr__(), f"{[a]}", x


@programs()
def text_of_containers(x):
    return str([1, (2, {"k": {3}})]), repr({"a": None}), f"{(1,)} {[1.5]} {b'q'}", str(range(3)), str(slice(1, 2)), x


@programs()
def string_methods(x):
    s = " The quick, brown fox "
    return (
        s.strip().split(),
        s.upper(),
        s.title(),
        s.replace("quick", "slow"),
        s.strip().partition(","),
        s.find("q"),
        s.count("o"),
        "-".join(["a", "b"]),
        "a,b,,c".rsplit(",", 1),
        "abc".startswith(("a", "x")),
        "abc".endswith("c"),
        "x=1".removeprefix("x="),
        "ab12".isalnum(),
        "é".encode(),
        "abc".translate({97: "z"}),
        "a\nb".splitlines(),
        "7".zfill(3),
        "abc"[::-1],
        "a" * 3,
        "b" in "abc",
        "%s" % x.dim(),
        ord("a"),
        chr(98),
        "abc" < "abd",
        x + len(s),
    )


@programs()
def bytes_methods(x):
    b = b"abc"
    return b[0], b[1:], b + b"d", b.hex(), bytes([1, 2]), b.decode(), list(b), b"b" in b, bytes.fromhex("ff"), x


@programs()
def bytearray_operations(x):
    b = bytearray(b"abc")
    b.append(100)
    b[0] = 65
    return bytes(b), len(b), x


@programs()
def imports_inside(x):
    import math
    from collections import OrderedDict as Ordered
    from math import pi

    return x * math.sqrt(4), pi, Ordered(a=1)


@programs()
def import_error(x):
    try:
        import no_such_module_at_all  # noqa: F401
    except ImportError as error:
        return type(error).__name__, error.name, x


@programs(breaks=True)
def import_name_error(x):
    try:
        from math import nothing  # noqa: F401
    except ImportError as error:
        return type(error).__name__, x


@programs()
def class_made_inside(x):
    class A:
        k = 3

        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v * self.k

    class B(A):
        def get(self):
            return super().get() + 1

    return B(x).get(), B.__mro__[1].__name__, isinstance(B(x), A), issubclass(B, A)


@programs()
def class_body_with_code(x):
    class A:
        values = [i * 2 for i in range(3)]
        total = sum(values)
        for i in values:
            last = i

    return A.values, A.total, A.last, x


@programs(breaks=True)
def type_called_with_three(x):
    T = type("T", (), {"k": 2, "f": lambda self, v: v * self.k})
    return T().f(x), T.__name__
