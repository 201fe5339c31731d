"""Frames that are entered in the middle and finished by CPython."""

import asyncio
import faulthandler
import gc
import sys
import threading
import traceback
import tracemalloc
import types
import warnings

import pytest

from magneto import _testing

NULL = ...


def callable_entries(function):
    """What lies on the stack for a callable without a self."""
    return [function, NULL] if sys.version_info >= (3, 13) else [NULL, function]


def exit_entries(manager):
    """What lies on the stack for the end of a `with` block."""
    return [manager.__exit__, NULL] if sys.version_info >= (3, 14) else [manager.__exit__]


BORROWS = sys.version_info >= (3, 14)  # the stack does not own what a local variable keeps alive


def names_of(code):
    """Names in slot order."""
    return list(code.co_varnames) + [n for n in code.co_cellvars if n not in code.co_varnames] + list(code.co_freevars)


def at(code, op, nth=0):
    """Index of the nth instruction with this name (or one of these names)."""
    ops = op if isinstance(op, tuple) else (op,)
    return [i for i, row in enumerate(_testing.decode(code)[0]) if row[0] in ops][nth]


def on_line(function, offset):
    """Index of the first instruction on a line, counted from the `def`."""
    code = function.__code__
    line = code.co_firstlineno + offset
    instrs = _testing.decode(code)[0]
    entry = at(code, "RESUME")
    return next(i for i, row in enumerate(instrs) if i > entry and row[6] == line)


def slots(function, values):
    """The list of slots: `values` by name, wrapped into cells where the code has cells; free variables' own cells."""
    code = function.__code__
    result = []
    for name in names_of(code):
        if name in code.co_freevars:
            result.append(function.__closure__[code.co_freevars.index(name)])
        elif name in code.co_cellvars:
            result.append(types.CellType(values[name]) if name in values else types.CellType())
        else:
            result.append(values.get(name, NULL))
    return result


def enter(function, instr, values=None, stack=None, action="continue", operand=None, args=(), handled=None):
    """Calls `function(*args)`, but starts at `instr` with these locals and this stack."""
    state = None if values is None else slots(function, values)
    call = lambda: function(*args)  # noqa: E731
    return _testing.resume_test(function.__code__, call, instr, state, stack or [], action, operand, handled)


def line_in(error, function):
    """The line, counted from the `def`, that the traceback names for the function."""
    code = function.__code__
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    assert len(lines) == 1, lines
    return lines[0] - code.co_firstlineno


# ---- loops ----


def summing(n):
    total = 0
    for i in range(n):
        total += i
    return total


def test_for_loop():
    for_iter = at(summing.__code__, "FOR_ITER")
    assert enter(summing, for_iter, {"n": 0, "total": 100}, [iter([1, 2, 3])], args=(0,)) == 106
    assert enter(summing, for_iter, {"n": 0, "total": 100}, [iter([])], args=(0,)) == 100


def nested(n):
    found = []
    for i in range(n):
        for j in range(i):
            while j > 1:
                j -= 1
                if i + j == 7:
                    break
            found.append((i, j))
    return found


def test_nested_loops():
    inner = at(nested.__code__, "FOR_ITER", 1)
    result = enter(nested, inner, {"n": 4, "found": [], "i": 9}, [iter([2, 3]), iter([0, 1])], args=(4,))
    assert result == [(9, 0), (9, 1), (2, 0), (2, 1), (3, 0), (3, 1), (3, 1)]


def counting(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def test_while_loop():
    assert enter(counting, on_line(counting, 3), {"n": 6, "steps": 10}, args=(1,)) == 10 + counting(6)
    assert enter(counting, on_line(counting, 4), {"n": 6, "steps": 10}, args=(1,)) == 11 + counting(6)


def test_in_the_middle_of_an_expression():
    def f(a, b):
        return a * 2 + b * 3

    add = at(f.__code__, "BINARY_OP", 2)
    assert enter(f, add, {}, [40, 2], args=(0, 0)) == 42


def test_call_with_keywords_and_a_null_on_the_stack():
    def f(g):
        return g(1, 2, x=3, y=4)

    def g(*args, **kwargs):
        return args, kwargs

    result = enter(f, at(f.__code__, "CALL"), {"g": 0}, [*callable_entries(g), 1, 2, 3, 4], args=(0,))
    assert result == ((1, 2), {"x": 3, "y": 4})


def test_extended_arguments_are_entered_at_their_prefix():
    names = ", ".join(f"v{i}" for i in range(400))
    scope = {}
    exec(f"def f({names}):\n  return v399 + v398\n", scope)
    f = scope["f"]
    load = next(i for i, row in enumerate(_testing.decode(f.__code__)[0]) if row[2] < row[3])
    assert enter(f, load, {"v398": 3, "v399": 4}, args=range(400)) == 7


# ---- with, try ----


class Manager:
    def __init__(self, swallow=False):
        self.swallow, self.log = swallow, []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *exc):
        self.log.append(exc[0])
        return self.swallow


def using(manager, x):
    with manager as m:
        m.log.append(x)
        y = 10 // x
    return m, y


def test_with_body():
    manager = Manager()
    m, y = enter(using, on_line(using, 2), {"m": manager, "x": 5}, exit_entries(manager), args=(0, 0))
    assert (m, y, manager.log) == (manager, 2, [5, None])


def test_with_body_that_raises():
    manager = Manager()
    with pytest.raises(ZeroDivisionError) as caught:
        enter(using, on_line(using, 2), {"m": manager, "x": 0}, exit_entries(manager), args=(0, 0))
    assert manager.log == [0, ZeroDivisionError]
    assert line_in(caught.value, using) == 3
    swallowing = Manager(swallow=True)
    with pytest.raises(UnboundLocalError) as caught:
        enter(using, on_line(using, 2), {"m": swallowing, "x": 0}, exit_entries(swallowing), args=(0, 0))
    assert line_in(caught.value, using) == 4


def trying(x, log):
    try:
        log.append("body")
        y = 1 / x
    except ZeroDivisionError as error:
        log.append(str(error))
        y = sys.exc_info()[1]
    finally:
        log.append("finally")
    return y


def test_try_body():
    log = []
    assert enter(trying, on_line(trying, 3), {"x": 2, "log": log}, args=(0, 0)) == 0.5
    assert log == ["finally"]


def test_try_body_that_raises():
    log = []
    assert isinstance(enter(trying, on_line(trying, 2), {"x": 0, "log": log}, args=(0, 0)), ZeroDivisionError)
    assert log == ["body", "division by zero", "finally"]
    assert sys.exc_info() == (None, None, None)


def test_except_body():
    error, log = ZeroDivisionError("old"), []
    values = {"x": 0, "log": log, "error": error}
    assert enter(trying, on_line(trying, 5), values, [None], args=(0, 0), handled=error) is error
    assert log == ["old", "finally"]
    assert sys.exc_info() == (None, None, None)


def test_except_body_inside_of_another():
    error, outer = ZeroDivisionError("old"), KeyError("outer")
    try:
        raise outer
    except KeyError:
        values = {"x": 0, "log": [], "error": error}
        assert enter(trying, on_line(trying, 5), values, [outer], args=(0, 0), handled=error) is error
        assert sys.exc_info()[1] is outer


def test_bare_raise_in_an_except_body():
    def f():
        try:
            g()
        except ValueError:
            raise

    error = ValueError("again")
    with pytest.raises(ValueError, match="again"):
        enter(f, on_line(f, 4), {}, [None], handled=error)
    assert sys.exc_info() == (None, None, None)


# ---- cells ----


def make_adder(base):
    def adder(x):
        total = x

        def more(y):
            nonlocal total
            total += y + base
            return total

        more(0)
        return more(x), more

    return adder


def test_cells_from_the_skipped_prologue():
    adder = make_adder(100)
    value, more = enter(adder, on_line(adder, 1), None, args=(5,))
    assert value == make_adder(100)(5)[0]
    assert more(1) == make_adder(100)(5)[1](1)


def test_cells_that_are_given():
    adder = make_adder(100)

    def more(y):
        return y * 1000

    value, same = enter(adder, on_line(adder, 9), {"x": 5, "total": 1, "more": more}, args=(0,))
    assert (value, same) == (5000, more)


def test_an_argument_that_is_a_cell():
    def f(x, y):
        def g():
            return x, y

        x += 1
        return g()

    count = sys.getrefcount(f)
    assert enter(f, on_line(f, 1), None, args=(1, 2)) == (2, 2)
    assert sys.getrefcount(f) == count


def test_class_body_and_comprehension():
    def f(n):
        squares = [i * i for i in range(n)]

        class C:
            values = squares
            size = n

        return squares, C

    squares, cls = enter(f, on_line(f, 3), {"n": 3, "squares": [7]}, args=(0,))
    assert squares == cls.values == [7] and cls.size == 3
    assert enter(f, on_line(f, 1), None, args=(3,))[0] == [0, 1, 4]


# ---- exceptions ----


def test_traceback_lines():
    def g():
        raise KeyError("deep")

    def f(x):
        y = x
        y += 1
        g()
        return y

    with pytest.raises(KeyError) as caught:
        enter(f, on_line(f, 2), {"x": 0, "y": 1}, args=(0,))
    assert line_in(caught.value, f) == 3
    assert line_in(caught.value, g) == 1


def catching(g):
    try:
        x = g(1, 2)
    except ValueError as error:
        return "handled", error
    return x, len(x)


def test_raise_into_a_handler():
    error = ValueError("put here")
    call = at(catching.__code__, "CALL")
    assert enter(catching, call, {"g": 0}, [*callable_entries(int), 1], "raise", error, args=(0,)) == ("handled", error)
    assert line_in(error, catching) == 2
    assert sys.exc_info() == (None, None, None)


def test_raise_without_a_handler():
    error = KeyError("put here")
    with pytest.raises(KeyError) as caught:
        enter(catching, at(catching.__code__, "CALL"), {"g": 0}, [1, 2, 3], "raise", error, args=(0,))
    assert caught.value is error and line_in(error, catching) == 2
    error = ValueError("outside of the try")
    with pytest.raises(ValueError):
        enter(
            catching, at(catching.__code__, "CALL", 1), {"g": 0}, [*callable_entries(int), 3], "raise", error, args=(0,)
        )
    assert line_in(error, catching) == 5


# ---- returns ----


def test_return_with_a_full_stack():
    held = [object(), object()]
    counts = [sys.getrefcount(h) for h in held]
    value = object()
    inner = at(nested.__code__, "FOR_ITER", 1)
    result = enter(nested, inner, {"n": held[0]}, [held[1], NULL, held[1]], "return", value, args=(0,))
    assert result is value
    del result
    assert [sys.getrefcount(h) for h in held] == counts
    assert sys.getrefcount(value) == 2 - BORROWS


def test_return_where_the_code_has_no_return_value():
    def constant():
        return None

    def endless():
        while True:
            pass

    for f in (constant, endless):
        assert enter(f, on_line(f, 1), {}, [], "return", "other") == "other"


# ---- the current frame ----


def visible(a, b):
    c = a
    d = [c, b]
    return d


def test_current_frame():
    seen = []

    def look():
        frame = sys._getframe(1)
        seen.append((frame.f_code, frame.f_lineno - visible.__code__.co_firstlineno, dict(frame.f_locals)))
        seen.append(frame.f_back.f_code)
        return "looked"

    here = sys._getframe().f_code
    caller = lambda: visible(0, 0)  # noqa: E731
    state = slots(visible, {"a": 1, "b": 2, "c": 3})
    assert _testing.resume_test(visible.__code__, caller, on_line(visible, 2), state, [5], "call", look) == "looked"
    assert seen == [(visible.__code__, 2, {"a": 1, "b": 2, "c": 3}), caller.__code__]
    assert sys._getframe().f_code is here


def test_frame_objects_outlive_their_frame():
    kept = []

    def look():
        kept.append(sys._getframe(1))

    value = object()

    def caller():
        kept.append(sys._getframe())
        return visible(0, 0)

    state = slots(visible, {"a": 1, "b": value, "c": 3})
    _testing.resume_test(visible.__code__, caller, on_line(visible, 2), state, [5], "call", look)
    back, frame = kept
    gc.collect()
    assert frame.f_back is back
    assert frame.f_code is visible.__code__
    assert frame.f_lineno - visible.__code__.co_firstlineno == 2
    assert _testing.decode(visible.__code__)[0][on_line(visible, 2)][3] * 2 == frame.f_lasti
    assert frame.f_locals == {"a": 1, "b": value, "c": 3}
    state.clear()
    count = sys.getrefcount(value)
    frame.clear()
    assert sys.getrefcount(value) == count - 1 and frame.f_locals == {}


def test_frame_object_then_exception():
    def look():
        sys._getframe(1).f_locals
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError) as caught:
        enter(visible, on_line(visible, 3), {"a": 1, "b": 2, "d": 3}, [], "call", look, args=(0, 0))
    assert line_in(caught.value, visible) == 3
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert names[-2:] == ["visible", "look"]


def test_builtins_that_look_at_the_frame():
    class Base:
        pass

    class Derived(Base):
        def method(self, x):
            super()
            return __class__

    method, self = Derived.method, Derived()
    line = on_line(method, 1)
    assert enter(method, line, {"self": self, "x": 1}, [], "call", super, args=(0, 0)).__self__ is self
    assert enter(method, line, None, [], "call", super, args=(self, 0)).__thisclass__ is Derived
    assert enter(visible, on_line(visible, 1), {"a": 1}, [], "call", locals, args=(0, 0)) == {"a": 1}
    assert enter(visible, on_line(visible, 1), {}, [], "call", globals, args=(0, 0)) is globals()
    assert enter(visible, on_line(visible, 1), {}, [], "call", gc.collect, args=(0, 0)) >= 0


def test_fault_handler_walks_the_frames(tmp_path):
    with open(tmp_path / "dump", "w+") as file:
        dump = lambda: faulthandler.dump_traceback(file)  # noqa: E731
        enter(visible, on_line(visible, 2), {"a": 1}, [5], "call", dump, args=(0, 0))
        file.seek(0)
        current = file.read().partition("Current thread")[2].splitlines()[1:5]  # other threads are listed as well
        assert [line.split()[-1] for line in current] == ["<lambda>", "visible", "<lambda>", "enter"]


@pytest.mark.threads
def test_threads():
    seen = []

    def work():
        for i in range(200):
            generator = producing(3)
            seen.append(list(generator))

    def look():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sys._getframe(1).f_code

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        code = enter(visible, on_line(visible, 2), {"a": 1}, [5], "call", look, args=(0, 0))
    finally:
        sys.setswitchinterval(interval)
    assert code is visible.__code__ and seen == [list(producing(3))] * 800


def test_warnings_name_the_line():
    def warn():
        warnings.warn("look here", stacklevel=2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        enter(visible, on_line(visible, 3), {"a": 1, "b": 2, "d": 3}, [], "call", warn, args=(0, 0))
    assert [(w.filename, w.lineno - visible.__code__.co_firstlineno) for w in caught] == [(__file__, 3)]


def test_getframe_after_entry():
    def f(x):
        y = x + 1
        frame = sys._getframe()
        return frame, frame.f_lineno, frame.f_back

    frame, line, back = enter(f, on_line(f, 2), {"x": 1, "y": 5}, args=(0,))
    assert line - f.__code__.co_firstlineno == 3
    assert back.f_code.co_name == "<lambda>"
    assert frame.f_back is back and frame.f_locals["y"] == 5


# ---- generators ----


def producing(n):
    total = 0
    for i in range(n):
        sent = yield total
        total += sent or i
    return total


def test_generator_states():
    g = producing(2)
    code = producing.__code__
    instrs = _testing.decode(code)[0]
    index, depth = _testing.generator_state(g)
    assert instrs[index - 1][0] == "RETURN_GENERATOR" and depth == 0
    next(g)
    index, depth = _testing.generator_state(g)
    assert instrs[index - 1][0] == "YIELD_VALUE" and depth == 1
    list(g)
    assert _testing.generator_state(g) is None
    assert _testing.generator_state(None) is None

    def running():
        yield _testing.generator_state(h)

    h = running()
    assert next(h) is None


def test_generator_is_entered_in_its_loop():
    g = producing(0)
    for_iter = at(producing.__code__, "FOR_ITER")
    state = slots(producing, {"n": 0, "total": 10})
    assert _testing.resume_test(producing.__code__, lambda: next(g), for_iter, state, [iter([1, 2])]) == 10
    assert next(g) == 11
    with pytest.raises(StopIteration) as caught:
        g.send(100)
    assert caught.value.value == 111


def test_generator_yield():
    g = producing(0)
    yield_instr = at(producing.__code__, "YIELD_VALUE")
    state = slots(producing, {"n": 0, "total": 10})
    value = object()
    stack = [iter([7])]
    args = (yield_instr, state, stack, "yield", value)
    assert _testing.resume_test(producing.__code__, lambda: next(g), *args) is value
    assert g.gi_suspended and g.gi_frame.f_lineno - producing.__code__.co_firstlineno == 3
    assert sys.getrefcount(value) == 3 - BORROWS  # here, in args, and the call's own
    assert g.send(5) == 15
    with pytest.raises(StopIteration) as caught:
        g.send(5)
    assert caught.value.value == 20


def test_generator_yield_again_after_a_send():
    g = producing(3)
    assert next(g) == 0
    yield_instr = at(producing.__code__, "YIELD_VALUE")
    iterator = iter([4])
    state = slots(producing, {"n": 3, "total": 50, "i": 9})
    result = _testing.resume_test(producing.__code__, lambda: g.send(1), yield_instr, state, [iterator], "yield", "y")
    assert result == "y"
    assert next(g) == 59


def test_generator_return():
    for state_stack in ([], [iter([1]), object()]):
        g = producing(3)
        next(g)
        instr = at(producing.__code__, "FOR_ITER")
        with pytest.raises(StopIteration) as caught:
            _testing.resume_test(producing.__code__, lambda: next(g), instr, None, state_stack, "return", "done")
        assert caught.value.value == "done"
        assert g.gi_frame is None and list(g) == []
    assert sys.exc_info() == (None, None, None)


def test_generator_raise():
    g = producing(3)
    next(g)
    with pytest.raises(KeyError) as caught:
        _testing.resume_test(
            producing.__code__, lambda: next(g), on_line(producing, 4), None, [iter([1])], "raise", KeyError("x")
        )
    assert line_in(caught.value, producing) == 4
    assert g.gi_frame is None


def test_generator_throw_and_close_pass_the_hook():
    def f():
        try:
            yield 1
        except KeyError:
            yield "caught"
        yield "after"

    def drive():
        g = f()
        return next(g), g.throw(KeyError()), next(g), g.close()

    assert _testing.resume_test(summing.__code__, lambda: (drive(), summing(3)), 0) == ((1, "caught", "after", None), 3)


def test_generator_frame_is_current():
    g = producing(3)
    seen = []

    def look():
        frame = sys._getframe(1)
        seen.append((frame.f_code, frame.f_locals["total"], frame.f_back.f_code.co_name))
        gc.collect()
        return "end"

    state = slots(producing, {"total": 4})
    with pytest.raises(StopIteration, match="end"):
        _testing.resume_test(producing.__code__, lambda: next(g), on_line(producing, 2), state, [], "call", look)
    assert seen == [(producing.__code__, 4, "<lambda>")]


def test_coroutines():
    async def wait(x):
        await asyncio.sleep(0)
        return x

    async def f(n):
        results = []
        for i in range(n):
            results.append(await wait(i))
        return results

    for_iter = at(f.__code__, "FOR_ITER")
    state = slots(f, {"n": 3, "results": ["old"]})
    assert _testing.resume_test(f.__code__, lambda: asyncio.run(f(3)), for_iter, state, [iter([7, 8])]) == ["old", 7, 8]


# ---- what must stay balanced ----


def depth_left():
    def dive(n):
        try:
            return dive(n + 1)
        except RecursionError:
            return n

    return dive(0)


def use_all_exits():
    for_iter = at(summing.__code__, "FOR_ITER")
    enter(summing, for_iter, {"n": 0, "total": 100}, [iter([1, 2, 3])], args=(0,))
    enter(summing, for_iter, {"n": 0, "total": 100}, [iter([1])], "return", [1], args=(0,))
    enter(catching, at(catching.__code__, "CALL"), {"g": 0}, callable_entries(int), "raise", ValueError(), args=(0,))
    enter(visible, on_line(visible, 2), {"a": 1}, [[]], "call", lambda: sys._getframe(1).f_lineno, args=(0, 0))
    enter(make_adder(3), on_line(make_adder(3), 1), None, args=(5,))
    g = producing(0)
    yield_instr = at(producing.__code__, "YIELD_VALUE")
    state = slots(producing, {"i": 0, "total": 1})
    _testing.resume_test(producing.__code__, lambda: next(g), yield_instr, state, [iter([])], "yield", 3)
    list(g)
    g = producing(2)
    try:
        _testing.resume_test(producing.__code__, lambda: next(g), for_iter, None, [], "return", 3)
    except StopIteration:
        pass
    try:
        enter(summing, for_iter, {"n": 0}, [], "raise", KeyError(), args=(0,))
    except KeyError:
        pass


def test_recursion_limit_stays():
    before = depth_left()
    for _ in range(2000):
        use_all_exits()
    for _ in range(10_000):
        enter(summing, 0, None, args=(3,))
    assert depth_left() == before


def test_frames_count_as_recursion():
    before = depth_left()
    inside = enter(visible, on_line(visible, 2), {"a": 1}, [], "call", depth_left, args=(0, 0))
    # Entered through: enter, its lambda, and the frame itself.
    assert before - 5 <= inside <= before - 3


def test_recursion_is_as_deep_under_the_hook():
    before = depth_left()
    under_hook = _testing.resume_test(summing.__code__, lambda: (summing(1), depth_left()), 0)[1]
    assert before - 3 <= under_hook <= before


if sys.version_info >= (3, 12):  # 3.11 does not count its use of the C stack

    def test_a_raised_recursion_limit_does_not_exhaust_the_c_stack():
        def endless():
            return endless()

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(10_000_000)
        try:
            with pytest.raises(RecursionError):
                _testing.resume_test(summing.__code__, lambda: (summing(1), endless()), 0)
        finally:
            sys.setrecursionlimit(limit)


def test_recursion_error_at_the_entry_is_clean():
    value = object()
    count = sys.getrefcount(value)

    def dive():
        try:
            enter(summing, 0, None, args=(0,))
            dive()
        except RecursionError:
            return

    dive()
    assert sys.getrefcount(value) == count and summing(4) == 6


def test_nothing_leaks():
    use_all_exits()
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(4):
            for _ in range(300):
                use_all_exits()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[1] < 2000, sizes


def test_no_references_leak():
    value = object()
    count = sys.getrefcount(value)
    subtract = at(nested.__code__, "BINARY_OP")
    everything = {name: value for name in nested.__code__.co_varnames}
    for _ in range(100):
        enter(nested, subtract, everything, [value] * 4, "return", value, args=(value,))
        with pytest.raises(KeyError):
            enter(nested, subtract, everything, [value] * 4, "raise", KeyError(value), args=(value,))
        with pytest.raises(TypeError):
            enter(nested, subtract, everything, [value] * 4, args=(value,))
    everything.clear()
    gc.collect()
    assert sys.getrefcount(value) == count
