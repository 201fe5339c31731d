"""Every state that a run goes through is resumed in a new frame, and must end as the run did.

A trace function takes a snapshot (locals, cells, value stack) before each instruction. Each is then put into the
frame of another call of the function, which CPython finishes. CPython saves the stack for its trace function when
a new line begins, so the functions get a location table that gives each instruction a line of its own; thereby
tracebacks are compared by instruction, too.
"""

import copy
import inspect
import sys
import traceback
import types

import pytest

from magneto import _testing

UNCOPIABLE = (types.GeneratorType, type({}.keys()))


def copied(values, memo):
    """Copies state that the run goes on changing. Cells are copied as well, the functions that share them are not."""
    result = []
    for value in values:
        if value is ... or isinstance(value, types.ModuleType):
            result.append(value)
        elif isinstance(value, BaseException) and id(value) not in memo:
            memo[id(value)] = duplicate = copy.copy(value).with_traceback(value.__traceback__)
            duplicate.__context__, duplicate.__cause__ = value.__context__, value.__cause__
            duplicate.__suppress_context__ = value.__suppress_context__
            result.append(duplicate)
        elif isinstance(value, types.CellType):
            if id(value) not in memo:
                try:
                    memo[id(value)] = types.CellType(*copied([value.cell_contents], memo))
                except ValueError:
                    memo[id(value)] = types.CellType()
            result.append(memo[id(value)])
        else:
            result.append(copy.deepcopy(value, memo))
    return result


def with_a_line_for_each_instruction(function):
    code = function.__code__
    starts = [row[2] for row in _testing.decode(code)[0]] + [len(code.co_code) // 2]
    table = bytearray()
    for start, end in zip(starts, starts[1:]):
        delta = 1
        while start < end:  # an entry without columns: up to eight code units, then the signed step to the next line
            length = min(8, end - start)
            table += bytes([0x80 | 13 << 3 | length - 1, delta << 1])
            start, delta = start + length, 0
    return types.FunctionType(
        code.replace(co_linetable=bytes(table)), function.__globals__, function.__name__, closure=function.__closure__
    )


def snapshots(function, args):
    """The outcome of a run, and the states that it went through."""
    taken, yielded = [], []

    def trace(frame, event, arg):
        if frame.f_code is not function.__code__:
            return None
        if event == "line":
            instr, slots, stack = _testing.snapshot_test(frame)
            memo = {}
            if not any(isinstance(value, UNCOPIABLE) for value in slots + stack):
                state = copied(slots, memo), copied(stack, memo), copied([sys.exc_info()[1]], memo)[0]
                taken.append((instr, len(yielded), *state))
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        result = finish(function, lambda: function(*args), yielded)
    finally:
        sys.settrace(previous)
    return result, yielded, taken


def finish(function, call, yielded):
    """The result of a call; of a generator, of running it to its end. Of an exception: its type, text and lines."""
    try:
        result = call()
        if isinstance(result, types.GeneratorType):
            generator = result
            while True:
                try:
                    yielded.append(next(generator))
                except StopIteration as stop:
                    return "returned", stop.value
        return "returned", result
    except Exception as error:
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is function.__code__]
        return type(error), str(error), lines


def check(function, *args):
    function = with_a_line_for_each_instruction(function)
    result, yielded, taken = snapshots(function, copy.deepcopy(args))
    entry = next(i for i, row in enumerate(_testing.decode(function.__code__)[0]) if row[0] == "RESUME")
    assert len({state[0] for state in taken}) > 20 and taken[0][0] == entry + 1
    if not function.__code__.co_flags & inspect.CO_GENERATOR:
        # The arguments as they are bound, the prologue done by frame_init_cells.
        for instr in (entry, entry + 1):
            call = lambda: finish(function, lambda: function(*copy.deepcopy(args)), [])  # noqa: E731
            assert _testing.resume_test(function.__code__, call, instr, None, []) == result
    for instr, already_yielded, slots, stack, handled in taken:
        rest = []

        def call():
            # Within the hook, so that a generator is driven there too.
            return finish(function, lambda: function(*copy.deepcopy(args)), rest)

        outcome = _testing.resume_test(function.__code__, call, instr, slots, stack, "continue", None, handled)
        where = _testing.decode(function.__code__)[0][instr]
        assert sys.exc_info() == (None, None, None)
        assert outcome == result, where
        assert rest == yielded[already_yielded:], where
    return result


class Manager:
    def __init__(self, swallow):
        self.swallow, self.log = swallow, []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind)
        return self.swallow

    def __eq__(self, other):
        return self.__dict__ == other.__dict__


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def loops(n):
    found = []
    for i in range(n):
        for j, k in zip(range(i), range(10, 99)):
            while j > 1:
                j -= 1
                if i + j == 5:
                    break
            else:
                found.append((i, j, k))
                continue
            found.append(k)
        if i == 4:
            break
    else:
        found.append("whole")
    return found


def expressions(a, b):
    c = [a + b * 2, (a, b), {a: b, **{"x": 1}}, {a, b, *[3]}, f"{a!r:>5}{b:.2f}", a if a > b else -b, not a, ~b]
    d = c[1][0] < a <= b or a and b
    x, *y, z = c
    c[0:2] = [1]
    first, second = second_first = (d, z)
    del c[0]
    return c, d, x, y, z, first, second, second_first, a is b, 1 in c, c[-1:]


def calls(a):
    def g(*args, **kwargs):
        return args, sorted(kwargs.items())

    method = "x-y".split
    return g(a, *[1, 2], k=a, **{"m": 3}), g(1, b=2 if a else 3), method("-"), max(a, 2, key=lambda v: -v), [].append(1)


def exceptions(n):
    log = []
    for i in range(n):
        try:
            try:
                log.append(10 // (i - 1))
                {}[i]
            except ZeroDivisionError as error:
                log.append(str(error))
                continue
            except (KeyError, IndexError):
                log.append("key")
                if i == 3:
                    raise ValueError(i)
            else:
                log.append("none")
            finally:
                log.append("finally")
        except ValueError as error:
            log.append((error.args, type(error.__context__)))
            break
    return log


def uncaught(n):
    total = 0
    for i in range(n):
        try:
            total += 10 // (n - 2 - i)
        finally:
            total += 1
    return total


def managers(a, b):
    with a as x, b:
        x.log.append("body")
        with a:
            raise KeyError("inner")
    a.log.append("end")
    return a, b


def cells(n):
    total = n

    def add(k):
        return k + 1

    for i in range(3):
        total += add(i)
    return total, n


def matching(values):
    found = []
    for value in values:
        match value:
            case Point(x, y=0):
                found.append(("point", x))
            case [first, *rest] if rest:
                found.append((first, rest))
            case {"k": k, **others}:
                found.append((k, others))
            case 1 | 2 as number:
                found.append(number)
            case str():
                found.append("text")
            case _:
                found.append(None)
    return found


def comprehensions(n):
    a = [i * j for i in range(n) for j in range(i) if j]
    b = {i: [j for j in range(i)] for i in a}
    c = {i % 3 for i in a}
    return a, b, c, sum(i for i in a), [k for k in sorted(b)]


def exception_groups(n):
    log = []
    try:
        raise ExceptionGroup("all", [ValueError(n), KeyError(n)])
    except* ValueError as group:
        log.append(("value", len(group.exceptions)))
    except* KeyError as group:
        log.append(("key", len(group.exceptions)))
    return log


def generator(n):
    total = 0
    for i in range(n):
        try:
            got = yield i, total
            total += got or i
            if i == 2:
                raise KeyError(i)
        except KeyError:
            yield "caught"
        finally:
            total += 1
    return total


def delegating(n):
    first = yield from [1, 2]
    second = yield from range(n)
    return first, second


def imports(n):
    import os.path as path
    from collections import OrderedDict, deque

    class Local(OrderedDict):
        size: int = n

    if n <= 0:
        raise LookupError("positive")
    return path.basename("/a/b"), list(deque([n])), Local.size, Local.__name__


EVERYTHING = [
    (loops, 7),
    (loops, 3),
    (expressions, 3, 4),
    (expressions, 0, 1),
    (calls, 3),
    (exceptions, 6),
    (uncaught, 4),
    (managers, Manager(False), Manager(True)),
    (managers, Manager(True), Manager(False)),
    (cells, 4),
    (matching, [Point(1, 0), Point(1, 2), [1, 2, 3], [1], {"k": 1, "m": 2}, 2, "s", None]),
    (comprehensions, 5),
    (exception_groups, 3),
    (generator, 4),
    (delegating, 3),
    (imports, 2),
    (imports, 0),
]


@pytest.mark.parametrize("case", EVERYTHING, ids=lambda case: case[0].__name__)
def test_every_state_can_be_resumed(case):
    function, *args = case
    check(function, *args)
