"""Containers, iterators and numbers are changed between calls."""

import array
import bisect
import collections
import contextvars
import dataclasses
import decimal
import enum
import fractions
import gc
import heapq
import itertools
import threading
import types
import weakref

from scenario import Registry, v

scenario = Registry()


@scenario
def default_list_argument_is_mutated(start):

    def program(x, acc=[]):
        acc.append(len(acc) + 1)
        return (x * sum(acc), acc)

    c = start(program, program.__defaults__)
    for _ in range(4):
        c(v())
    program.__defaults__[0].clear()
    c(v())
    program.__defaults__ = ([10],)
    c(v())
    c(v())


@scenario
def keyword_default_dict_is_mutated(start):

    def program(x, *, cache={}):
        k = x.shape[0]
        if k not in cache:
            cache[k] = len(cache)
        return x + cache[k]

    c = start(program, program.__kwdefaults__)
    c(v())
    c(v()[:3])
    c(v())
    program.__kwdefaults__["cache"][6] = 77
    c(v())
    c(v()[:2])


@scenario
def weak_dict_of_modules(start):

    class K:
        pass

    ks = [K() for _ in range(3)]
    d = weakref.WeakKeyDictionary({k: i for i, k in enumerate(ks)})

    def program(x):
        return (x + sum(d.values()), len(d))

    c = start(program)
    c(v())
    c(v())
    ks.pop()
    gc.collect()
    c(v())
    d[ks[0]] = 50
    c(v())


@scenario
def weak_value(start):

    class K:
        def __init__(s, n):
            s.n = n

    k = K(3)
    r = weakref.ref(k)

    def program(x):
        o = r()
        return x * (o.n if o is not None else -1)

    c = start(program)
    c(v())
    k.n = 4
    c(v())
    k = None
    gc.collect()
    c(v())


@scenario
def dict_order_matters(start):
    d = {"a": 1.0, "b": 2.0}

    def program(x):
        for k, w in d.items():
            x = x * w + len(k) + w
        return (x, list(d))

    c = start(program)
    c(v())
    d["a"] = d.pop("a")
    c(v())
    c(v())
    d.update(c=3.0)
    c(v())
    del d["b"]
    d["b"] = 2.0
    c(v())


@scenario
def ordereddict_move_to_end(start):
    d = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def program(x):
        for k, w in d.items():
            x = x * w + w
        return x

    c = start(program)
    c(v())
    d.move_to_end("a")
    c(v())
    d.move_to_end("c", last=False)
    c(v())
    d.popitem(last=False)
    c(v())
    c(v())


@scenario
def identity_of_list_members(start):
    a = [1]
    b = [1]

    def program(p, x):
        p[0].append(2)
        return (x + len(p[1]), p[0] is p[1])

    c = start(program)
    c([a, a], v())
    c([a, b], v())
    c([b, a], v())
    c((a, a), v())


@scenario
def generator_kept_between_calls(start):

    def gen():
        k = 0
        while True:
            got = yield k
            k = k + 1 if got is None else got

    g = gen()

    def program(x):
        return x + next(g)

    c = start(program)
    [c(v()) for _ in range(4)]
    g.send(50)
    c(v())
    g.close()
    c(v())


@scenario
def iterator_kept_between_calls(start):
    it = iter([1, 2, 3, 4, 5])

    def program(x):
        for k in it:
            return x * k
        return x

    c = start(program)
    [c(v()) for _ in range(7)]


@scenario
def enumerate_and_count_kept(start):
    n = itertools.count(5)
    e = enumerate("abc")
    z = zip([1, 2, 3], (4, 5, 6))
    m = map(lambda a: a * 2, [1, 2, 3])

    def program(x):
        return (x + next(n), next(e, None), next(z, None), next(m, None))

    c = start(program)
    [c(v()) for _ in range(5)]


@scenario
def int_subclass_and_bool(start):

    class N(int):
        def __mul__(s, o):
            return "mul"

        def __add__(s, o):
            return int(s) + 100

    def program(x, n):
        return (n * 2, n + 1, x + int(n), type(n).__name__)

    c = start(program)
    c(v(), N(3))
    c(v(), 3)
    c(v(), True)
    c(v(), N(4))


@scenario
def str_subclass_key(start):

    class S(str):
        def __eq__(s, o):
            return True

        def __hash__(s):
            return hash("a")

    d = {"a": 1, "b": 2}

    def program(x, k):
        return x * d[k]

    c = start(program)
    c(v(), "a")
    c(v(), S("zzz"))
    c(v(), "b")
    d["a"] = 7
    c(v(), S("q"))
    c(v(), "a")


@scenario
def enum_values(start):

    class E(enum.Enum):
        A = 1
        B = 2.5

    class F(enum.IntFlag):
        X = 1
        Y = 2
        Z = 4

    def program(x, e, f):
        return (x * e.value, e is E.A, f | F.Z, F.X in f, e.name, [m.name for m in E])

    c = start(program)
    c(v(), E.A, F.X)
    c(v(), E.B, F.X | F.Y)
    E.A._value_ = 10
    c(v(), E.A, F(0))


@scenario
def dataclass_fields_replaced(start):

    @dataclasses.dataclass
    class D:
        a: float
        b: list = dataclasses.field(default_factory=list)

    d = D(2.0)

    def program(x):
        d.b.append(d.a)
        e = dataclasses.replace(d, a=d.a + 1)
        return (x * e.a, e, e.b is d.b, d == e, dataclasses.astuple(d))

    c = start(program, d)
    c(v())
    c(v())
    d.b = []
    d.a = 7
    c(v())


@scenario
def namedtuple_class_changed(start):
    N = collections.namedtuple("N", "a b", defaults=(3,))

    def program(n, x):
        return (n.a * x + n.b, n._replace(b=1), n)

    c = start(program)
    c(N(1), v())
    c(N(1, 4), v())
    N.a = property(lambda s: 100)
    c(N(1, 4), v())


@scenario
def contextvar_changes(start):
    cv = contextvars.ContextVar("cv", default=1.0)

    def program(x):
        return x * cv.get()

    c = start(program)
    c(v())
    t = cv.set(3.0)
    c(v())
    cv.reset(t)
    c(v())
    contextvars.copy_context().run(lambda: (cv.set(9.0), c(v())))
    c(v())


@scenario
def thread_local_value(start):
    tl = threading.local()
    tl.k = 2

    def program(x):
        return x * getattr(tl, "k", 10)

    c = start(program)
    c(v())
    tl.k = 3
    c(v())
    t = threading.Thread(target=lambda: c(v()))
    t.start()
    t.join()
    c(v())
    del tl.k
    c(v())


@scenario
def thread_local_written(start):
    tl = threading.local()

    def program(x):
        tl.n = getattr(tl, "n", 0) + 1
        return x * tl.n

    c = start(program)
    c(v())
    c(v())
    t = threading.Thread(target=lambda: [c(v()) for _ in range(3)])
    t.start()
    t.join()
    c(v())


@scenario
def mapping_proxy_and_views(start):
    d = {"a": 1.0}
    p = types.MappingProxyType(d)
    ks = d.keys()
    vs = d.values()
    it = d.items()

    def program(x):
        return (x * p["a"], list(ks), sum(vs), dict(it), "b" in ks, len(p))

    c = start(program)
    c(v())
    d["b"] = 2.0
    c(v())
    d["a"] = 5.0
    c(v())
    del d["b"]
    c(v())


@scenario
def userdict_and_chainmap(start):
    u = collections.UserDict(a=1)
    cm = collections.ChainMap({"a": 1.0}, {"b": 2.0})

    def program(x):
        return (x * u["a"] + cm["b"] * cm.get("a"), len(cm), list(cm))

    c = start(program)
    c(v())
    u["a"] = 4
    c(v())
    cm.maps[1]["b"] = 7.0
    c(v())
    cm.maps.insert(0, {"b": 0.5})
    c(v())
    cm["z"] = 1
    c(v())


@scenario
def counter_and_missing(start):
    k = collections.Counter("aab")

    class D(dict):
        def __missing__(s, n):
            s[n] = len(n)
            return s[n]

    d = D(x=9)

    def program(x, n):
        return (x * k[n] + d[n], k.most_common(1), d.get(n))

    c = start(program, d, k)
    c(v(), "a")
    c(v(), "zz")
    k["zz"] = 5
    c(v(), "zz")
    D.__missing__ = lambda s, n: 100
    c(v(), "yy")
    c(v(), "zz")


@scenario
def array_module_and_bytes(start):
    a = array.array("d", [1.0, 2.0])
    b = bytearray(b"ab")
    mv = memoryview(b)

    def program(x):
        return (x * a[0] + b[0] + mv[1], len(a))

    c = start(program)
    c(v())
    a[0] = 5.0
    c(v())
    b[0] = 1
    c(v())
    mv[1] = 2
    c(v())
    a.append(1.0)
    c(v())


@scenario
def fraction_decimal(start):
    f = fractions.Fraction(1, 3)
    d = decimal.Decimal("1.5")

    def program(x, q):
        return (x * float(f * q), float(d + 1), (f + q).numerator)

    c = start(program)
    c(v(), fractions.Fraction(1, 2))
    c(v(), fractions.Fraction(2, 3))
    c(v(), 2)
    decimal.getcontext().prec = 3
    start(lambda x: (x + float(decimal.Decimal(1) / 3),))(v())
    decimal.getcontext().prec = 28


@scenario
def recursion_with_memo(start):
    memo = {}

    def fib(n):
        if n in memo:
            return memo[n]
        r = n if n < 2 else fib(n - 1) + fib(n - 2)
        memo[n] = r
        return r

    def program(x, n):
        return x * fib(n)

    c = start(program, memo)
    c(v(), 5)
    c(v(), 6)
    memo.clear()
    c(v(), 4)
    memo[4] = 100
    c(v(), 5)


@scenario
def heap_and_bisect_state(start):
    h = [5, 3, 8]
    heapq.heapify(h)

    def program(x):
        a = heapq.heappop(h)
        heapq.heappush(h, a + 4)
        return (x * a, list(h), bisect.bisect(sorted(h), 4))

    c = start(program, h)
    [c(v()) for _ in range(4)]
