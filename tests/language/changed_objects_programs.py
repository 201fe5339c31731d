"""Classes, functions and modules are changed between calls."""

import functools
import types
from unittest.mock import patch

import numpy as np
import torch
from scenario import Registry, v

scenario = Registry()


@scenario
def default_of_inner_function_is_replaced(start):

    def inner(x, k=2):
        return x * k

    def program(x):
        return inner(x)

    c = start(program)
    c(v())
    inner.__defaults__ = (5,)
    c(v())
    inner.__defaults__ = None
    c(v())
    inner.__kwdefaults__ = None
    inner.__defaults__ = (torch.tensor(3.0),)
    c(v())
    inner.__defaults__ = (torch.tensor(4.0),)
    c(v())


@scenario
def cell_rebound_by_sibling(start):

    def make():
        k = 1.0

        def read(x):
            return x * k

        def bump():
            nonlocal k
            k += 1

        return (read, bump)

    read, bump = make()

    def program(x):
        a = read(x)
        bump()
        return a + read(x)

    c = start(program)
    for i in range(5):
        c(v())
    bump()
    c(v())


@scenario
def cell_type_changes(start):
    k = 1

    def program(x):
        return (x * k, type(k).__name__)

    c = start(program)
    c(v())
    for k in (1.0, True, torch.tensor(2.0), np.float32(3), np.int64(4), 2 + 0j):
        c(v())


@scenario
def module_parameter_swapped_by_setattr(start):
    m = torch.nn.Linear(6, 6)

    def program(x):
        return m(x)

    c = start(program, m)
    with torch.no_grad():
        c(v())
        m.weight = torch.nn.Parameter(torch.ones(6, 6))
        c(v())
        m.weight.data = torch.full((6, 6), 2.0)
        c(v())
        m.weight.data = torch.full((3, 6), 2.0)
        m.bias = None
        c(v())
        del m._parameters["weight"]
        m.weight = torch.eye(6) * 3
        c(v())


@scenario
def module_surgery(start):
    m = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6))

    def program(x):
        return m(x)

    c = start(program)
    with torch.no_grad():
        c(v())
        m[1] = torch.nn.Tanh()
        c(v())
        m.append(torch.nn.Sigmoid())
        c(v())
        del m[0]
        c(v())
        m.insert(0, torch.nn.Identity())
        c(v())
        m[1].forward = lambda x: x - 1
        c(v())
        del m[1].forward
        c(v())
        h = m[1].register_forward_hook(lambda mod, i, o: o * 2)
        c(v())
        h.remove()
        c(v())
        m.register_module("extra", torch.nn.Softmax(-1))
        c(v())
        m.__class__ = type("S", (torch.nn.Sequential,), {"forward": lambda s, x: x * 0})
        c(v())


@scenario
def forward_is_replaced_on_class(start):

    class M(torch.nn.Module):
        def forward(self, x):
            return x + 1

    m = M()

    def program(x):
        return m(x)

    c = start(program)
    c(v())
    M.forward = lambda self, x: x + 2
    c(v())
    M.__call__ = lambda self, x: x + 9
    c(v())
    del M.__call__
    c(v())
    m.forward = lambda x: x + 5
    c(v())


@scenario
def exceptions_across_frames(start):

    class E(Exception):
        def __init__(s, t, n):
            super().__init__(n)
            s.t = t

    def deep(x, n):
        if n == 0:
            raise E(x * 2, "deep")
        try:
            deep(x + 1, n - 1)
        finally:
            x.add_(0)

    def program(x, n):
        try:
            deep(x, n)
        except E as e:
            return (e.t, e.args, e.__context__ is None, e.__traceback__ is not None)

    c = start(program)
    for n in (0, 1, 3):
        c(v(), n)


@scenario
def finally_changes_state(start):
    log = []

    def program(x, bad):
        try:
            log.append("in")
            if bad:
                raise RuntimeError("no")
            return x + 1
        finally:
            log.append("out")

    c = start(program, log)
    c(v(), False)
    c(v(), True)
    c(v(), False)


@scenario
def property_on_class_replaced(start):

    class A:
        k = 2

        @property
        def p(s):
            return s.k

    a = A()

    def program(x):
        return x * a.p

    c = start(program)
    c(v())
    a.k = 3
    c(v())
    A.p = property(lambda s: s.k * 10)
    c(v())
    A.p = 4
    c(v())
    a.__dict__["p"] = 5
    c(v())
    del A.p
    c(v())


@scenario
def getattr_hook_added(start):

    class A:
        pass

    a = A()
    a.z = 1

    def program(x):
        return (x * getattr(a, "q", 2), hasattr(a, "w"))

    c = start(program)
    c(v())
    A.__getattr__ = lambda s, n: 9
    c(v())
    del A.__getattr__
    c(v())
    A.q = 4
    c(v())
    a.w = 1
    c(v())


@scenario
def base_class_changed(start):

    class A:
        def f(s, x):
            return x + 1

    class B(A):
        pass

    class C:
        def f(s, x):
            return x * 100

    b = B()

    def program(x):
        return b.f(x)

    c = start(program)
    c(v())
    A.f = lambda s, x: x + 2
    c(v())
    B.f = lambda s, x: x + 3
    c(v())
    del B.f
    c(v())

    class D(C):
        pass

    b.__class__ = D
    c(v())
    b.f = lambda x: x - 1
    c(v())


@scenario
def slots_deleted(start):

    class S:
        __slots__ = ("a", "b")

    s = S()
    s.a = 1

    def program(x):
        return x * s.a + getattr(s, "b", 10)

    c = start(program)
    c(v())
    s.b = 3
    c(v())
    del s.b
    c(v())
    s.a = 4
    c(v())
    del s.a
    c(v())


@scenario
def singledispatch_registered_later(start):

    @functools.singledispatch
    def f(o, x):
        return x

    class A:
        pass

    class B(A):
        pass

    def program(o, x):
        return f(o, x)

    c = start(program)
    c(B(), v())
    f.register(A, lambda o, x: x + 1)
    c(B(), v())
    f.register(B, lambda o, x: x + 2)
    c(B(), v())
    c(A(), v())
    c(3, v())


@scenario
def cached_property_deleted(start):

    class A:
        n = 1

        @functools.cached_property
        def p(s):
            return s.n * 2

    a = A()

    def program(x):
        return x * a.p

    c = start(program, a)
    c(v())
    a.n = 5
    c(v())
    del a.p
    c(v())
    c(v())
    a.p = 3
    c(v())


@scenario
def lru_cache_gives_one_object_for_several_arguments(start):
    missing = object()

    @functools.lru_cache(8)
    def find(kind):
        return missing

    def program(x):
        return x + (find(int) is missing), x * (find(str) is missing), find((int, "a")) is missing

    c = start(program)
    c(v())
    c(v())
    missing = object()
    c(v())
    c(v())
    find.cache_clear()
    find(str)
    missing = object()
    c(v())
    c(v())


@scenario
def partial_attributes_changed(start):

    def g(x, a, b=2):
        return x * a + b

    class Pt(functools.partial):
        pass

    p = functools.partial(g, a=3)
    q = Pt(g, a=1)

    def program(x):
        return (p(x), q(x), p.keywords["a"])

    c = start(program)
    c(v())
    p.keywords["a"] = 7
    c(v())
    q.keywords["b"] = 9
    c(v())
    p.__setstate__((g, (), {"a": 2, "b": 1}, None))
    c(v())


@scenario
def class_getitem_and_call_replaced(start):

    class A:
        def __call__(s, x):
            return x + 1

        def __getitem__(s, k):
            return k * 2

        def __len__(s):
            return 3

        def __bool__(s):
            return False

    a = A()

    def program(x):
        return (a(x) * a[2] + len(a), bool(a), x + 1 if a else x - 1)

    c = start(program)
    c(v())
    A.__getitem__ = lambda s, k: k * 3
    c(v())
    A.__call__ = lambda s, x: x
    c(v())
    A.__len__ = lambda s: 0
    c(v())
    del A.__bool__
    c(v())
    A.__len__ = lambda s: 1
    c(v())


@scenario
def getattribute_added_later(start):

    class A:
        k = 2

    a = A()

    def program(x):
        return x * a.k

    c = start(program)
    c(v())
    A.__getattribute__ = lambda s, n: 5
    c(v())
    del A.__getattribute__
    c(v())


@scenario
def metaclass_attribute(start):

    class M(type):
        @property
        def k(cls):
            return cls.n

        def __call__(cls, *a):
            return 7 if a else super().__call__()

    class A(metaclass=M):
        n = 3

    def program(x):
        return (x * A.k, A(1), type(A()).__name__)

    c = start(program)
    c(v())
    A.n = 4
    c(v())
    M.k = 9
    c(v())


@scenario
def new_global_shadows_builtin(start):
    g = {"torch": torch, "__builtins__": __builtins__}
    exec("def program(x):\n    return x*len([1,2]), abs(-3), max(1,2)\n", g)
    c = start(g["program"])
    c(v())
    g["len"] = lambda a: 10
    c(v())
    g["abs"] = lambda a: "abs"
    c(v())
    del g["len"]
    c(v())


@scenario
def builtins_patched(start):
    import builtins

    def program(x):
        return x * sum([1, 2])

    c = start(program)
    c(v())
    with patch.object(builtins, "sum", lambda a: 50):
        c(v())
    c(v())


@scenario
def slots_and_dict_mix(start):

    class A:
        __slots__ = ("p", "__dict__")

    a = A()
    a.p = 1
    a.q = 2

    def program(x):
        a.p += 1
        a.q *= 2
        a.r = getattr(a, "r", 0) + 1
        return (x * a.p + a.q, a.__dict__, sorted(vars(a)))

    c = start(program, a)
    c(v())
    c(v())
    a.__dict__ = {"q": 7}
    c(v())
    a.__dict__["q"] = 1
    del a.p
    c(v())


@scenario
def dict_of_instance_replaced(start):

    class A:
        pass

    a = A()
    a.k = 1
    b = A()
    b.k = 5

    def program(x):
        return x * a.k

    c = start(program)
    c(v())
    a.__dict__ = b.__dict__
    c(v())
    b.k = 6
    c(v())
    a.__dict__ = {}
    c(v())
    A.k = 3
    c(v())


@scenario
def class_swapped(start):

    class A:
        def f(s, x):
            return x + s.k

    class B(A):
        def f(s, x):
            return super().f(x) * 2

    a = A()
    a.k = 1

    def program(x):
        return (a.f(x), type(a).__name__, isinstance(a, B))

    c = start(program)
    c(v())
    a.__class__ = B
    c(v())
    B.f = lambda s, x: x
    c(v())
    a.__class__ = A
    c(v())


@scenario
def super_in_mixin(start):

    class R:
        def f(s, x):
            return x

    class M1(R):
        def f(s, x):
            return super().f(x) + 1

    class M2(R):
        def f(s, x):
            return super().f(x) * 2

    class C(M1, M2):
        pass

    o = C()

    def program(x):
        return o.f(x)

    c = start(program)
    c(v())
    M2.f = lambda s, x: x * 100
    c(v())
    del M2.f
    c(v())
    C.__bases__ = (M2, M1)
    c(v())
    C.__bases__ = (M1,)
    c(v())


@scenario
def method_cached_on_instance(start):

    class A:
        def f(s, x):
            return x + 1

    a = A()
    g = a.f

    def program(x):
        return (g(x), g.__self__ is a, g.__func__ is A.f, a.f == g)

    c = start(program)
    c(v())
    A.f = lambda s, x: x + 2
    c(v())
    a.f = lambda x: x + 3
    c(v())


@scenario
def function_attributes(start):

    def f(x):
        f.calls = getattr(f, "calls", 0) + 1
        return x * f.calls

    def program(x):
        return f(x)

    c = start(program)
    c(v())
    c(v())
    f.calls = 10
    c(v())
    del f.calls
    c(v())
    f.__code__ = (lambda x: x - 1).__code__ if False else f.__code__
    c(v())


@scenario
def code_replaced(start):

    def f(x):
        return x + 1

    def g(x):
        return x * 50

    def program(x):
        return f(x)

    c = start(program)
    c(v())
    f.__code__ = g.__code__
    c(v())


@scenario
def wraps_decorator_changed(start):

    def deco(k):

        def d(f):

            @functools.wraps(f)
            def w(*a, **kw):
                return f(*a, **kw) * state["k"]

            return w

        state = {"k": k}
        d.state = state
        return d

    d = deco(2)

    @d
    def f(x, *, b=1):
        return x + b

    def program(x):
        return (f(x), f(x, b=3), f.__name__, f.__wrapped__(x))

    c = start(program)
    c(v())
    d.state["k"] = 5
    c(v())
    f.__wrapped__.__kwdefaults__ = {"b": 9}
    c(v())


@scenario
def global_module_attribute(start):
    mod = types.ModuleType("mod")
    mod.k = 2
    mod.f = lambda x: x * mod.k

    def program(x):
        return mod.f(x) + mod.k

    c = start(program)
    c(v())
    mod.k = 3
    c(v())
    mod.f = lambda x: x
    c(v())
    mod.__getattr__ = lambda n: 77
    del mod.k
    c(v())


@scenario
def exec_made_function(start):
    ns = {}
    exec("def f(x,k=[1]):\n    k.append(1)\n    return x*len(k)+G", ns)
    ns["G"] = 1
    c = start(ns["f"])
    c(v())
    ns["G"] = 5
    c(v())
    c(v())


@scenario
def closures_in_loop(start):
    fs = []
    for i in range(3):

        def f(x, i=i):
            return x * i + j

        fs.append(f)
    j = 1

    def program(x):
        return [f(x) for f in fs]

    c = start(program)
    c(v())
    j = 2
    c(v())
    fs.reverse()
    c(v())
    fs[0].__defaults__ = (9,)
    c(v())


@scenario
def nonlocal_shared_between_calls(start):

    def make():
        n = 0
        log = []

        def step(x):
            nonlocal n
            n += 1
            log.append(n)
            return x * n

        def reset():
            nonlocal n, log
            n = 0
            log = []

        return (step, reset)

    step, reset = make()
    c = start(step)
    c(v())
    c(v())
    reset()
    c(v())


@scenario
def del_free_variable(start):
    k = 1

    def dele():
        nonlocal k
        del k

    def sete(z):
        nonlocal k
        k = z

    def program(x):
        return x * k

    c = start(program)
    c(v())
    dele()
    c(v())
    sete(4)
    c(v())


@scenario
def print_between(start):

    def program(x):
        print("a", x.shape)
        y = x + 1
        print(y.sum().item())
        return y * 2

    c = start(program)
    c(v())
    c(v(2))
    c(v()[:2])
