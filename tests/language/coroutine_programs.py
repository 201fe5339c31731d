"""Coroutines that the program itself drives, what they await, and groups of exceptions."""

from __future__ import annotations

import asyncio
import types

import torch
from programs import Programs

programs = Programs()


def result_of(coroutine):
    """Sends to it until it is over."""
    sent = None
    while True:
        try:
            sent = coroutine.send(sent)
        except StopIteration as stop:
            return stop.value


class Ready:
    """What one awaits: hands its value to who drives the coroutine, and gets it back."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield self.value
        return got * 2


class Count:
    def __init__(self, end):
        self.now, self.end = 0, end

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.now += 1
        if self.now > self.end:
            raise StopAsyncIteration
        return self.now


class Section:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    async def __aenter__(self):
        self.log.append("in")
        return len(self.log)

    async def __aexit__(self, kind, error, trace):
        self.log.append(kind and kind.__name__)
        return self.swallows


@programs()
def driven_by_hand(x):
    async def work(v, *, scale=2):
        return v * scale

    coroutine = work(x, scale=3)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value * 2


@programs()
def awaits_others(x):
    async def inner(v, n):
        return v if n == 0 else await inner(v * 2, n - 1)

    async def outer(v):
        a = await inner(v, 2)
        return a + await inner(a, 1)

    return result_of(outer(x))


@programs()
def talks_to_its_driver(x):
    async def work(v):
        a = await Ready(v + 1)
        b = await Ready(a * 3)
        return a, b

    coroutine = work(x)
    first = coroutine.send(None)
    second = coroutine.send(first + 1)
    try:
        coroutine.send(second)
    except StopIteration as stop:
        return first, second, stop.value


@programs()
def thrown_into(x):
    log = []

    async def work(v):
        try:
            await Ready(v)
        except KeyError as error:
            log.append(error.args)
            return await Ready(v * 2)
        finally:
            log.append("end")

    coroutine = work(x)
    coroutine.send(None)
    got = coroutine.throw(KeyError("k"))
    try:
        coroutine.send(got)
    except StopIteration as stop:
        return stop.value, log


@programs()
def closed(x):
    log = []

    async def work(v):
        try:
            await Ready(v)
        finally:
            log.append("closed")

    coroutine = work(x)
    y = coroutine.send(None) + 1
    coroutine.close()
    coroutine.close()
    return y, log


@programs()
def never_started(x):
    async def work(v):
        return v

    coroutine = work(x)
    coroutine.close()
    try:
        coroutine.send(None)
    except RuntimeError as error:
        return x + 1, str(error)


@programs()
def raises(x):
    async def inner(v):
        raise ValueError("v", v.shape[0])

    async def outer(v):
        try:
            return await inner(v)
        except ValueError as error:
            return v + error.args[1]

    async def stops():
        raise StopIteration(1)

    try:
        result_of(stops())
    except RuntimeError as error:
        text = str(error)
    return result_of(outer(x)), text


@programs()
def loops_and_contexts(x):
    log = []

    async def work(v):
        async with Section(log) as n:
            v = v * n
        async with Section(log, swallows=True):
            raise KeyError
        async for i in Count(2):
            v = v + i
        else:
            v = v * 2
        return v, [v * i async for i in Count(3) if i != 2], {i: v async for i in Count(1)}

    return result_of(work(x)), log


@types.coroutine
def pause(value):
    got = yield value
    return got + 1


@programs()
def of_a_generator(x):
    async def work(v):
        return await pause(v) * 2

    return result_of(work(x))


@programs()
def round_robin(x):
    """A loop of the program's own."""

    async def work(v, turns):
        for _ in range(turns):
            v = await Ready(v + 1)
        return v

    ready, done = [(work(x * k, k), None) for k in (1, 2, 3)], []
    while ready:
        coroutine, sent = ready.pop(0)
        try:
            ready.append((coroutine, coroutine.send(sent)))
        except StopIteration as stop:
            done.append(stop.value)
    return done


@programs.made()
def of_a_module():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 2)
            self.calls = 0

        async def forward(self, x):
            self.calls += 1
            return self.layer(x)

    model = Model()

    def program(x):
        async def both():
            return await model(x) + await model(x * 2)

        return result_of(both()).detach(), model.calls

    return program


@programs(breaks=True)
def handed_out(x):
    async def work(v):
        y = await Ready(v * 2)
        return y + 1

    coroutine = work(x)
    first = coroutine.send(None)
    print("between")
    try:
        coroutine.send(first)
    except StopIteration as stop:
        return stop.value


@programs(breaks=True)
def with_an_exit_inside(x):
    async def inner(v):
        print("in coroutine")
        return v * 2

    async def outer(v):
        return await inner(v + 1)

    return result_of(outer(x))


@programs(breaks=True)
def asynchronous_generators(x):
    async def numbers():
        for i in range(3):
            yield i

    async def work():
        return [x * i async for i in numbers()]

    return result_of(work())


@programs(breaks=True)
def under_a_loop_of_python(x):
    async def inner(v):
        await asyncio.sleep(0)
        return v + 1

    async def outer(v):
        return await asyncio.gather(inner(v), inner(v * 2))

    return asyncio.run(outer(x))


# -- groups of exceptions --------------------------------------------------------------------------------------------------


def kinds(error):
    if isinstance(error, BaseExceptionGroup):
        return type(error).__name__, error.message, [kinds(each) for each in error.exceptions]
    return type(error).__name__, error.args


@programs()
def several_leave(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2), OSError(3)])
        except* ValueError:
            raise KeyError(1)  # noqa: B904
        except* TypeError:
            raise KeyError(2)  # noqa: B904
    except ExceptionGroup as error:
        return x * len(error.exceptions), kinds(error), kinds(error.exceptions[0].__context__)


@programs()
def some_are_raised_again(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError(2), OSError(3)]), KeyError(4)])
        except* ValueError:
            raise
        except* TypeError:
            raise
        except* KeyError:
            x = x + 1
    except ExceptionGroup as error:
        return x, kinds(error)


@programs()
def a_group_and_a_new_one(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as group:
            raise RuntimeError("new") from group
    except ExceptionGroup as error:
        new = next(each for each in error.exceptions if isinstance(each, RuntimeError))
        return x + 1, kinds(error), kinds(new.__cause__)


@programs()
def split_and_derived(x):
    class Own(ExceptionGroup):
        def derive(self, exceptions):
            return Own("derived " + self.message, exceptions)

    group = Own("g", [ValueError(1), ExceptionGroup("h", [TypeError(2), KeyError(3)])])
    matched, rest = group.split((TypeError, KeyError))
    chosen = group.subgroup(lambda error: isinstance(error, ValueError))
    out = [kinds(matched), kinds(rest), kinds(chosen), group.subgroup(OSError), kinds(group.derive([OSError(4)]))]
    try:
        try:
            raise group
        except* ValueError as error:
            out.append(kinds(error))
    except ExceptionGroup as error:
        out.append(kinds(error))
    return x * 2, out


@programs()
def of_interrupts(x):
    try:
        raise BaseExceptionGroup("b", [KeyboardInterrupt(), ValueError(1)])
    except* KeyboardInterrupt as error:
        caught = kinds(error)
    except* Exception as error:
        rest = kinds(error)
    try:
        ExceptionGroup("e", [KeyboardInterrupt()])
    except TypeError as error:
        return x + 1, caught, rest, str(error)
