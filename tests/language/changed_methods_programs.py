"""Methods that C code, Python's library and names find, with what they read changed between calls."""

import collections
import copy
import functools
import gc
import inspect
import math
import operator
import threading
import types
import weakref

import numpy as np
import torch
from scenario import Registry, v

scenario = Registry()


@scenario
def str_and_repr_methods_found_by_c(start):
    pre = "a"

    class K:
        def __init__(s, n):
            s.n = n

        def __str__(s):
            return pre + str(s.n)

        def __repr__(s):
            return f"K({pre}{s.n})"

        def __format__(s, f):
            return pre * 2 + f

    k = K(1)

    def program(x):
        return (
            x + 1,
            str(k),
            f"{k}",
            f"{k:zz}",
            repr([k, {k.n: k}]),
            "%s" % k,
            "{}".format(k),
            ",".join(map(str, [k])),
        )

    c = start(program)
    c(v())
    pre = "b"
    c(v())
    k.n = 2
    c(v())
    K.__str__ = lambda s: "z"
    c(v())
    K.__repr__ = lambda s: "r"
    c(v())


@scenario
def texts_of_containers(start):
    grid, sizes, table = (2, 3), [1, 2], {"a": 1}

    def program(x):
        sizes.append(x.shape[0])
        return (
            x + 1,
            "{} of {!r}".format(grid, sizes),
            "{0[0]} {t[a]:>4}".format(sizes, t=table),
            "{}".format([grid, {"x": table}]),
            "%s %r" % (grid, table),
            f"{grid} {sizes}",
        )

    c = start(program)
    c(v())
    c(v())
    grid = (2, 4)
    c(v())
    table["a"] = "text"
    c(v())
    sizes[0] = None
    c(v())


@scenario
def len_bool_index_found_by_c(start):
    n = 2

    class K:
        def __len__(s):
            return n

        def __index__(s):
            return n

        def __getitem__(s, i):
            if i >= n:
                raise IndexError
            return i * n

        def __iter__(s):
            return iter(range(n))

        def __contains__(s, o):
            return o == n

        def __hash__(s):
            return n

        def __float__(s):
            return float(n)

        def __int__(s):
            return n * 10

    k = K()

    def program(x):
        return (
            x[:n],
            range(k),
            list(k),
            sum(k),
            2 in k,
            hash(k),
            float(k),
            int(k),
            [1, 2, 3, 4, 5, 6][k],
            bool(k),
            max(k),
            sorted(k),
            tuple(reversed(list(k))),
            math.floor(float(k)),
            x[k],
        )

    c = start(program)
    c(v())
    n = 3
    c(v())
    n = 1
    c(v())
    K.__len__ = lambda s: 0
    c(v())
    K.__hash__ = lambda s: 5
    c(v())


@scenario
def arithmetic_found_by_c(start):
    w = 1

    class K:
        def __init__(s, n):
            s.n = n

        def __add__(s, o):
            return K(s.n + getattr(o, "n", o) * w)

        __radd__ = __add__

        def __mul__(s, o):
            return K(s.n * w)

        def __lt__(s, o):
            return s.n * w < o.n * w

    ks = [K(3), K(1), K(2)]

    def program(x):
        return (
            x * sum(ks).n,
            functools.reduce(operator.add, ks).n,
            max(ks).n,
            sorted(ks)[0].n,
            min(ks, key=lambda k: k.n * w).n,
        )

    c = start(program)
    c(v())
    w = -1
    c(v())
    ks[0].n = 10
    c(v())
    K.__add__ = lambda s, o: K(1)
    c(v())


@scenario
def callable_object_as_key(start):

    class Key:
        def __init__(s, sign):
            s.sign = sign

        def __call__(s, a):
            return a * s.sign

    k = Key(1)

    def program(x):
        return (x + 1, sorted([3, 1, 2], key=k), max([1, 2], key=k), list(map(k, [1, 2])), list(filter(k, [0, 1])))

    c = start(program)
    c(v())
    k.sign = -1
    c(v())
    Key.__call__ = lambda s, a: 0
    c(v())
    k.sign = 0
    c(v())


@scenario
def partial_of_closure_as_key(start):
    off = 0

    def key(a, b):
        return abs(a - b - off)

    p = functools.partial(key, b=2)

    def program(x):
        return (x + 1, sorted([1, 2, 3, 4], key=p), min([5, 1], key=p))

    c = start(program)
    c(v())
    off = 2
    c(v())
    p.keywords["b"] = -1
    c(v())


@scenario
def context_manager_closure(start):
    log = []
    swallow = False

    class CM:
        def __enter__(s):
            log.append("in")
            return len(log)

        def __exit__(s, t, e, tb):
            log.append(t.__name__ if t else None)
            return swallow

    def program(x, bad):
        with CM() as n:
            x = x + n
            if bad:
                raise KeyError(n)
        return x

    c = start(program, log)
    c(v(), False)
    c(v(), True)
    swallow = True
    c(v(), True)
    CM.__exit__ = lambda s, *a: True
    c(v(), True)


@scenario
def class_decorator_and_property_cache(start):
    reg = {}

    def register(cls):
        reg[cls.__name__] = cls
        return cls

    @register
    class A:
        @property
        def k(s):
            return len(reg)

    def program(x):
        return (x * A().k, sorted(reg))

    c = start(program)
    c(v())
    register(type("B", (), {}))
    c(v())
    reg.pop("A")
    c(v())


@scenario
def method_resolution_via_getattr_dynamic_names(start):

    class A:
        def __init__(s):
            s.mode = "a"

        def do_a(s, x):
            return x + 1

        def do_b(s, x):
            return x * 2

    a = A()

    def program(x):
        return (getattr(a, "do_" + a.mode)(x), hasattr(a, "do_" + a.mode + "c"))

    c = start(program)
    c(v())
    a.mode = "b"
    c(v())
    A.do_b = A.do_a
    c(v())
    a.do_b = lambda x: x
    c(v())


@scenario
def copy_and_reduce_hooks(start):
    cnt = [0]

    class A:
        def __init__(s):
            s.t = [1]

        def __copy__(s):
            cnt[0] += 1
            r = A()
            r.t = s.t
            return r

        def __deepcopy__(s, m):
            cnt[0] += 10
            r = A()
            r.t = list(s.t)
            return r

    a = A()

    def program(x):
        b = copy.copy(a)
        d = copy.deepcopy([a, a])
        b.t.append(2)
        return (x * len(a.t), d[0] is d[1], d[0].t)

    c = start(program, a, cnt)
    c(v())
    c(v())
    A.__copy__ = lambda s: s
    c(v())


@scenario
def property_of_metaclass_and_classvar(start):

    class M(type):
        def __getattr__(cls, n):
            return n + str(cls.z)

        def __iter__(cls):
            return iter([1, cls.z])

        def __len__(cls):
            return cls.z

        def __contains__(cls, o):
            return o == cls.z

        def __eq__(cls, o):
            return True

        def __hash__(cls):
            return 1

    class A(metaclass=M):
        z = 2

    def program(x):
        return (x * A.z, A.foo, list(A), len(A), 2 in A, A == 3)

    c = start(program)
    c(v())
    A.z = 3
    c(v())
    M.__len__ = lambda cls: 7
    c(v())


@scenario
def signature_of_a_function_changed(start):

    def f(a, b=1, *, k=2):
        return a

    def program(x):
        sg = inspect.signature(f)
        return (x + len(sg.parameters), str(sg), [p.default is inspect._empty for p in sg.parameters.values()])

    c = start(program)
    c(v())
    f.__defaults__ = (5,)
    c(v())
    f.__kwdefaults__ = {"k": 9}
    c(v())
    f.__signature__ = inspect.signature(lambda q: 0)
    c(v())


@scenario
def namespaces_and_vars(start):
    n = types.SimpleNamespace(a=1, b=[2])

    def program(x):
        vars(n)["c"] = 3
        n.a += 1
        return (x * n.a, n, sorted(n.__dict__), vars(n) is n.__dict__)

    c = start(program, n)
    c(v())
    c(v())
    del n.c
    n.a = 10
    c(v())


@scenario
def tuple_and_namedtuple_subclasses(start):

    class P(collections.namedtuple("P", "a b")):
        __slots__ = ()

        @property
        def s(self):
            return self.a * scale + self.b

        def __add__(self, o):
            return P(self.a + o.a, self.b + o.b)

    scale = 1

    def program(p, x):
        return (x * p.s, p + p, p._asdict(), (*p,), p == (1, 2))

    c = start(program)
    c(P(1, 2), v())
    scale = 3
    c(P(1, 2), v())
    P.s = property(lambda z: 0)
    c(P(1, 2), v())


@scenario
def abstract_property_and_isinstance_chain(start):
    from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized

    class A:
        def __len__(s):
            return 1

    a = A()

    def program(o, x):
        return (
            x + 1,
            isinstance(o, Mapping),
            isinstance(o, Sequence),
            isinstance(o, Iterable),
            isinstance(o, Sized),
            callable(o),
            isinstance(o, (int, float)),
            isinstance(o, torch.Tensor | list),
            issubclass(type(o), Hashable),
        )

    c = start(program)
    for o in (
        a,
        [1],
        {},
        (1,),
        v(),
        3,
        "s",
        None,
        lambda: 0,
        torch.nn.Linear(1, 1),
        torch.nn.Parameter(v()),
        np.ones(2),
        torch.Size([1]),
    ):
        c(o, v())
    Sequence.register(A)
    c(a, v())


@scenario
def module_isinstance_and_subclass_made(start):

    class Base(torch.nn.Module):
        def forward(s, x):
            return x + 1

    class Sub(Base):
        pass

    ms = [Base(), Sub()]

    def program(x):
        for m in ms:
            x = m(x) * 2 if isinstance(m, Sub) else m(x)
        return (x, [k.__name__ for k in Base.__subclasses__()], issubclass(Sub, Base))

    c = start(program)
    c(v())
    keep = type("Sub2", (Base,), {})
    c(v())
    ms[0].__class__ = Sub
    c(v())
    Sub.__bases__ = (torch.nn.Module,)
    Sub.forward = lambda s, x: x
    c(v())


@scenario
def deleted_and_readded_methods(start):

    class A:
        def f(s, x):
            return x + 1

        def __call__(s, x):
            return s.f(x)

    a = A()

    def program(x):
        return a(x)

    c = start(program)
    c(v())
    f = A.f
    del A.f
    c(v())
    A.f = f
    c(v())
    A.f = staticmethod(lambda x: x * 3)
    c(v())
    A.f = classmethod(lambda cls, x: x * 5)
    c(v())
    A.f = torch.relu
    c(v())
    A.f = functools.partial(lambda k, x: x * k, 7)
    c(v())
    A.f = functools.partialmethod(lambda s, k, x: x - k, 2)
    c(v())


@scenario
def weak_method_and_finalize(start):
    log = []

    class A:
        def f(s):
            return 3

    a = A()
    wm = weakref.WeakMethod(a.f)
    weakref.finalize(a, log.append, "gone")
    ws = weakref.WeakSet([a])

    def program(x):
        f = wm()
        return (x * (f() if f else 0), len(ws), list(log))

    c = start(program)
    c(v())
    c(v())
    a = None
    gc.collect()
    c(v())


@scenario
def threads_write_what_is_read(start):
    box = [1]
    d = {"k": 1}

    def program(x):
        return x * box[0] + d["k"]

    c = start(program)
    c(v())
    t = threading.Thread(target=lambda: (box.__setitem__(0, 5), d.update(k=9)))
    t.start()
    t.join()
    c(v())
    t = threading.Thread(target=lambda: c(v(2)))
    t.start()
    t.join()


@scenario
def attribute_looked_up_statically(start):

    class A:
        @property
        def p(self):
            raise RuntimeError

        k = 1

    a = A()

    def program(x):
        return (
            x * inspect.getattr_static(a, "k"),
            isinstance(inspect.getattr_static(a, "p"), property),
            inspect.getattr_static(a, "z", None),
        )

    c = start(program)
    c(v())
    a.k = 2
    c(v())
    A.k = 5
    c(v())
    a.z = 7
    c(v())
    del a.k
    c(v())
    A.p = 3
    c(v())
