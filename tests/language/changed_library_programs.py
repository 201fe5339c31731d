"""Programs around the standard library, what they read changed between calls."""

import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import heapq
import itertools
import json
import math
import operator
import pathlib
import random
import re
import statistics
import string
import struct
import sys
import types

import torch
from scenario import Registry, restored, v

scenario = Registry()


@scenario
def exit_stack_with_callbacks(start):
    log = []

    @contextlib.contextmanager
    def tagged(name):
        log.append("in " + name)
        try:
            yield name
        finally:
            log.append("out " + name)

    names = ["a", "b"]

    def program(x, fail):
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(tagged(name))
            stack.callback(log.append, len(log))
            x = x + len(log)
            if fail:
                raise ValueError(fail)
        return (x, len(log))

    c = start(program, log)
    c(v(), "")
    c(v(), "")
    c(v(), "bad")
    names.append("c")
    log.clear()
    c(v(), "")
    names.clear()
    c(v(), "bad")


@scenario
def context_managers_that_swallow(start):
    swallowed = {"on": True}

    class Guard:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            self.kind = kind
            return swallowed["on"]

    @contextlib.contextmanager
    def translating():
        try:
            yield
        except KeyError as error:
            raise ValueError("translated") from error

    def program(x, table):
        guard = Guard()
        with guard:
            with translating():
                x = x * table["scale"]
        with contextlib.suppress(ZeroDivisionError):
            x = x + 1 // table.get("n", 1)
        return (x, guard.kind)

    c = start(program)
    c(v(), {"scale": 2.0})
    c(v(), {})
    c(v(), {"scale": 2.0, "n": 0})
    swallowed["on"] = False
    c(v(), {})
    c(v(), {"scale": 2.0})
    Guard.__exit__ = lambda self, *args: setattr(self, "kind", "replaced")
    c(v(), {"scale": 2.0})
    c(v(), {})


@scenario
def itertools_over_lists_that_change(start):
    rows = [("a", 1.0), ("a", 2.0), ("b", 3.0)]
    more = [[1, 2], [3]]

    def program(x):
        for key, group in itertools.groupby(rows, key=lambda r: r[0]):
            x = x * sum(n for _, n in group) + len(key)
        first, second = itertools.tee(itertools.chain.from_iterable(more))
        next(second, None)
        for a, b in zip(first, second):
            x = x + a * b
        x = x + sum(itertools.islice((n * n for n in itertools.count(1)), len(rows)))
        x = x + sum(itertools.accumulate([1, 2, 3], operator.mul)) + len(list(itertools.product("ab", rows)))
        best = list(itertools.takewhile(lambda r: r[1] < 3, rows))
        return (x, best, list(itertools.zip_longest(*more, fillvalue=0)), list(itertools.pairwise(rows)))

    c = start(program, rows)
    c(v())
    c(v())
    rows.append(("b", 0.5))
    c(v())
    rows[0] = ("z", 1.0)
    c(v())
    more[1].append(7)
    c(v())
    more.clear()
    c(v())


@scenario
def generators_with_finally_and_return_values(start):
    log = []
    limits = [3]

    def numbers(x):
        try:
            for i in range(limits[0]):
                got = yield x * i
                if got:
                    log.append(got)
        finally:
            log.append("end")
        return i

    def outer(x):
        last = yield from numbers(x)
        yield x * last

    def program(x):
        total = x
        g = outer(x)
        total = total + next(g)
        total = total + g.send("hello")
        for part in g:
            total = total + part
        h = numbers(x)
        next(h)
        h.close()
        k = numbers(x)
        next(k)
        try:
            k.throw(KeyError("k"))
        except KeyError as error:
            log.append(error.args[0])
        return (total, list(log))

    c = start(program, log)
    c(v())
    log.clear()
    c(v())
    limits[0] = 4
    c(v())
    limits[0] = 1
    c(v())


@scenario
def closures_and_defaults_changed(start):
    scale = 2.0
    history = []

    def rescale(x):
        return x * scale

    def set_scale(value):
        nonlocal scale
        scale = value

    def program(x, extra=[1.0], *, table={"k": 1.0}, fn=rescale):
        history.append(len(extra))
        extra.append(table["k"])
        return fn(x) + sum(extra)

    c = start(program, history)
    c(v())
    c(v())
    set_scale(5.0)
    c(v())
    program.__kwdefaults__["table"]["k"] = 10.0
    c(v())
    program.__kwdefaults__["fn"] = torch.neg
    c(v())
    program.__defaults__[0][:] = [100.0]
    c(v())
    c(v(), [0.0])


@scenario
def attributes_of_modules_deleted_and_put_back(start):
    mod = types.ModuleType("hunted_settings")
    mod.scale = 2.0
    mod.act = torch.relu
    sys.modules["hunted_settings"] = mod

    def program(x):
        import hunted_settings

        try:
            return hunted_settings.act(x - 3) * hunted_settings.scale
        except AttributeError as error:
            return (x, str(error))

    c = start(program)
    c(v())
    del mod.scale
    c(v())
    mod.scale = 3.0
    c(v())
    mod.act = torch.neg
    c(v())
    del mod.act
    c(v())
    mod.__getattr__ = lambda name: torch.abs
    c(v())
    mod.__getattr__ = lambda name: torch.neg
    c(v())
    mod.act = torch.exp
    c(v())
    del sys.modules["hunted_settings"]


@scenario
def chained_maps_and_user_containers(start):
    base = {"scale": 2.0, "shift": 1.0}
    local = {"scale": 3.0}
    chained = collections.ChainMap(local, base)
    users = collections.UserDict(a=1.0)
    items = collections.UserList([1, 2])

    def program(x):
        x = x * chained["scale"] + chained["shift"]
        users["n"] = users.get("n", 0) + 1
        items.append(len(items))
        return (x + sum(items) + users["n"], dict(chained), len(users), chained.get("none", 4), "a" in users)

    c = start(program, base, local, users.data, items.data)
    c(v())
    c(v())
    del local["scale"]
    c(v())
    base["shift"] = 9.0
    c(v())
    chained.maps.insert(0, {"shift": -1.0})
    c(v())
    items.data = [10]
    c(v())
    users.data = {"n": 40}
    c(v())


@scenario
def heaps_of_tuples(start):
    heap = [(2.0, "b"), (5.0, "c")]
    heapq.heapify(heap)

    def program(x, push):
        heapq.heappush(heap, (push, "new"))
        low, name = heapq.heappop(heap)
        return (x * low, name, heapq.nsmallest(2, heap), heapq.nlargest(1, heap), list(heapq.merge([1, 4], [2, 3])))

    c = start(program, heap)
    c(v(), 3.0)
    c(v(), 1.0)
    c(v(), 9.0)
    heap.clear()
    c(v(), 4.0)


@scenario
def templates_and_format_specs(start):
    template = string.Template("$name has $n")
    table = {"name": "layer", "n": 3}

    def program(x):
        text = template.substitute(table)
        other = "{name:>8}|{n:03d}|{0:.2f}".format(math.pi, **table)
        return (x + len(text), text, other, "%(name)s-%(n)d" % table, template.safe_substitute(name="q"))

    c = start(program)
    c(v())
    table["n"] = 12
    c(v())
    template.template = "$n!"
    c(v())
    del table["name"]
    c(v())


@scenario
def packed_bytes(start):
    fmt = ["<if"]
    data = bytearray(struct.pack("<if", 7, 2.5))

    def program(x):
        n, f = struct.unpack(fmt[0], data)
        size = struct.calcsize(fmt[0])
        return (x * n + f, size, struct.pack(">h", size), data[0], bytes(data[:2]), int.from_bytes(data[:4], "little"))

    c = start(program)
    c(v())
    data[0] = 9
    c(v())
    fmt[0] = "<fi"
    c(v())
    data.append(1)
    c(v())


@scenario
def dates_and_their_differences(start):
    when = [datetime.datetime(2024, 2, 28, 12)]
    step = datetime.timedelta(days=2, hours=1)

    def program(x):
        later = when[0] + step
        weeks = (later - datetime.datetime(2024, 1, 1)).days // 7
        return (x * weeks + later.month, later.isoformat(), later.weekday(), f"{later:%Y-%m}", later > when[0])

    c = start(program)
    c(v())
    when[0] = datetime.datetime(2023, 2, 28)
    c(v())
    when[0] = datetime.datetime(2030, 12, 31)
    c(v())


@scenario
def paths(start):
    root = [pathlib.PurePosixPath("models/base")]
    weights = {"model.bin": 2.0, "other.bin": 3.0}

    def program(x):
        path = root[0] / "run" / "model.bin"
        return (
            x * weights[path.name] + len(path.parts),
            path.suffix,
            path.stem,
            str(path.parent),
            path.with_suffix(".txt").name,
            path == root[0],
        )

    c = start(program)
    c(v())
    root[0] = root[0] / "deeper"
    c(v())
    weights["model.bin"] = 5.0
    c(v())
    root[0] = pathlib.PurePosixPath("/")
    c(v())


@scenario
def exact_numbers(start):
    price = [decimal.Decimal("1.10")]
    part = [fractions.Fraction(1, 3)]

    def program(x):
        total = price[0] * 3 + decimal.Decimal(1)
        f = part[0] + fractions.Fraction(1, 6)
        return (x * float(total) + float(f), str(total.quantize(decimal.Decimal("0.1"))), f.numerator, total > 4)

    c = start(program)
    c(v())
    price[0] = decimal.Decimal("2.25")
    c(v())
    part[0] = fractions.Fraction(5, 6)
    c(v())
    with restored(decimal.getcontext(), "prec"):
        decimal.getcontext().prec = 2
        c(v())
    c(v())


@scenario
def random_objects_of_their_own(start):
    rng = random.Random(3)

    def program(x):
        a = rng.random()
        b = rng.randint(1, 6)
        order = [1, 2, 3, 4]
        rng.shuffle(order)
        return (x * a + b, order, rng.choice("abc"), rng.sample(range(10), 3), rng.gauss(0, 1))

    c = start(program)
    c(v())
    c(v())
    rng.seed(3)
    c(v())
    state = rng.getstate()
    c(v())
    rng.setstate(state)
    c(v())


@scenario
def random_numbers_of_the_module(start):

    def program(x):
        n = random.randint(1, 3)
        if random.random() < 0.5:
            x = x * 2
        return (x + n, random.choice([1, 2, 3]), random.randrange(0, 10, 2), random.uniform(1, 2))

    c = start(program)
    before = random.getstate()
    try:
        random.seed(5)
        for _ in range(5):
            c(v())
        random.seed(5)
        c(v())
    finally:
        random.setstate(before)


@scenario
def patterns_from_outside(start):
    pattern = [re.compile(r"(?P<kind>\w+)\.(\d+)")]
    names = ["layer.1", "head.22", "none"]

    def program(x):
        for name in names:
            found = pattern[0].match(name)
            if found:
                x = x + int(found[2]) + len(found["kind"])
        joined = pattern[0].sub(lambda m: m.group(1).upper(), " ".join(names))
        return (x, joined, pattern[0].findall("a.1 b.2"), pattern[0].pattern, re.split(r"[.,]", names[0]))

    c = start(program)
    c(v())
    names[0] = "block.7"
    c(v())
    pattern[0] = re.compile(r"(?P<kind>[a-z])(.)")
    c(v())
    names.append("x.9")
    c(v())


@scenario
def documents_in_json(start):
    table = {"scale": 2.0, "layers": [1, 2, 3], "name": "net", "none": None}
    text = ['{"shift": 1.5, "list": [1, 2]}']

    def program(x):
        read = json.loads(text[0])
        written = json.dumps(table, sort_keys=True)
        return (x * table["scale"] + read["shift"] + sum(read["list"]), written, json.loads(written) == table)

    c = start(program)
    c(v())
    table["layers"].append(4)
    c(v())
    text[0] = '{"shift": 9, "list": []}'
    c(v())
    text[0] = "{"
    c(v())
    table["odd"] = object
    c(v())


@scenario
def copies_of_nested_state(start):

    class State:
        def __init__(self):
            self.t = v(2)
            self.parts = {"a": [1.0, 2.0], "t": self.t}

        def __copy__(self):
            new = State.__new__(State)
            new.__dict__.update(self.__dict__)
            new.copied = True
            return new

    state = State()

    def program(x):
        shallow = copy.copy(state)
        deep = copy.deepcopy(state.parts["a"])
        deep.append(len(deep))
        shallow.parts["a"].append(3.0)
        return (x * shallow.t + sum(deep), shallow.parts is state.parts, shallow.copied, hasattr(state, "copied"))

    c = start(program, state)
    c(v())
    c(v())
    state.parts["a"] = [7.0]
    c(v())
    state.t = v(5)
    c(v())
    State.__copy__ = lambda self: types.SimpleNamespace(t=1, parts={"a": []}, copied=False)
    c(v())


@scenario
def deep_copies_with_tensors_and_memo(start):
    shared = [1.0, 2.0]
    state = {"a": shared, "b": shared, "w": v(3)}

    def program(x):
        new = copy.deepcopy(state)
        new["a"].append(5.0)
        return (x * sum(new["b"]), new["a"] is new["b"], new["w"] + 1)

    c = start(program, state)
    c(v())
    c(v())
    shared.append(4.0)
    c(v())
    state["b"] = [1.0]
    c(v())


@scenario
def statistics_of_lists(start):
    numbers = [1.0, 2.0, 4.0]

    def program(x):
        return (
            x * statistics.mean(numbers) + statistics.median(numbers),
            statistics.pstdev(numbers),
            statistics.fmean(numbers),
        )

    c = start(program)
    c(v())
    numbers.append(9.0)
    c(v())
    numbers[0] = fractions.Fraction(1, 2)
    c(v())
    numbers.clear()
    c(v())


@scenario
def caches_of_functions(start):
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(n, kind="a"):
        calls.append(n)
        return n * 2.0

    @functools.cache
    def pure(n):
        return [n]

    def program(x, n):
        return (x * table(n) + table(n, kind="b"), len(calls), pure(n), table.cache_info().misses)

    c = start(program, calls)
    c(v(), 1)
    c(v(), 1)
    c(v(), 2)
    c(v(), 1)
    table.cache_clear()
    c(v(), 1)
    pure(1).append(5)
    c(v(), 1)


@scenario
def counters_and_default_dicts(start):
    words = ["a", "b", "a"]
    groups = collections.defaultdict(list)
    total = collections.Counter(z=1)

    def program(x):
        count = collections.Counter(words)
        for i, w in enumerate(words):
            groups[w].append(i)
        total.update(count)
        return (x * count["a"] + count["none"], count.most_common(1), dict(groups), total, +(total - count))

    c = start(program, groups, total)
    c(v())
    c(v())
    words.append("c")
    c(v())
    groups.default_factory = None
    words.append("d")
    c(v())
    total["a"] = 0
    c(v())


@scenario
def deque_as_a_window(start):
    window = collections.deque([1.0, 2.0], maxlen=3)

    def program(x, new):
        window.append(new)
        window.rotate(1)
        return (x * sum(window) / len(window), window[0], window[-1], new in window)

    c = start(program, window)
    c(v(), 3.0)
    c(v(), 4.0)
    c(v(), 5.0)
    window.clear()
    c(v(), 1.0)
    window.extend([1, 2, 3])
    c(v(), 1.0)


@scenario
def global_lists_and_counters(start):
    namespace = {"torch": torch, "history": [], "count": 0, "scale": 2.0}
    exec(
        """
def program(x):
    global count
    count += 1
    history.append(count)
    if len(history) > 3:
        history.pop(0)
    return x * scale + count, list(history)
""",
        namespace,
    )
    c = start(namespace["program"], namespace["history"])
    for _ in range(5):
        c(v())
    namespace["scale"] = 3.0
    namespace["history"] = [50]
    c(v())
    namespace["count"] = 100
    c(v())
    del namespace["scale"]
    c(v())
    namespace["__builtins__"] = dict(vars(__import__("builtins")), scale=7.0)
    c(v())


@scenario
def namespaces_and_simple_objects(start):
    options = types.SimpleNamespace(scale=2.0, steps=[1, 2])

    def program(x):
        for s in options.steps:
            x = x * options.scale + s
        options.last = len(options.steps)
        return (x, options == types.SimpleNamespace(scale=2.0, steps=[1, 2], last=2), vars(options)["scale"])

    c = start(program, options)
    c(v())
    c(v())
    options.steps.append(3)
    c(v())
    options.scale = 1.0
    del options.last
    c(v())
    options.__dict__.update(scale=-1.0)
    c(v())
