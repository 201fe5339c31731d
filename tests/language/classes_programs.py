"""User classes: attributes, properties, descriptors, slots, hooks, metaclasses, inheritance, operators, tensor subclasses."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()


class Plain:
    kind = "plain"
    shared: list = []

    def __init__(self, v: Any = 1) -> None:
        self.v = v

    def scaled(self, k: Any) -> Any:
        return self.v * k

    @classmethod
    def make(cls, v: Any) -> Any:
        return cls(v)

    @staticmethod
    def helper(v: Any) -> Any:
        return v + 1


def each(make: Any, *more: Any) -> Any:
    """Two calls with equal, fresh arguments (x, make())."""
    return tuple((lambda m=m: (vector(), m())) for m in (make, make, *more))


@programs(*each(Plain, lambda: Plain(2)))
def attribute_read_and_written(x, p):
    p.v = p.v + 1
    p.new = x * p.v
    return p.new, p.v, p.kind, p.scaled(2), p.helper(1), p.make(3).v


@programs(*each(Plain))
def attribute_deleted_and_set_again(x, p):
    del p.v
    gone = hasattr(p, "v")
    p.v = x
    return gone, p.v, list(p.__dict__)


@programs(*each(Plain))
def class_attribute_shadowed_by_instance(x, p):
    before = p.kind
    p.kind = "own"
    mid = p.kind, Plain.kind
    del p.kind
    return before, mid, p.kind, x


@programs(*each(Plain))
def missing_attributes(x, p):
    out = []
    for f in (lambda: p.nope, lambda: Plain.nope, lambda: delattr(p, "nope"), lambda: p.scaled.nope):
        try:
            f()
        except AttributeError as error:
            out.append(str(error))
    return out, x


@programs.made()
def class_attribute_counter():
    class Counted:
        count = 0

        def __init__(self):
            Counted.count += 1

    def program(x):
        Counted()
        Counted()
        return x + Counted.count, Counted.count

    program.watched = (Counted,)
    return program


@programs.made()
def class_attribute_written_and_read_through_instance():
    class A:
        k = 1

    a = A()

    def program(x):
        A.k = A.k + 1
        type(a).extra = A.k * 2
        return x * a.k, a.extra, hasattr(A, "extra")

    return program


@programs.made()
def class_attribute_deleted():
    class A:
        k = 1

    def program(x):
        A.j = 5
        y = x * A.j
        del A.j
        return y, hasattr(A, "j")

    return program


@programs.made()
def class_attribute_written_on_base():
    class A:
        k = 1

    class B(A):
        pass

    def program(x):
        A.k += 1
        return x + B.k, B().k

    return program


@programs.made()
def class_attribute_with_tensor():
    class Cache:
        last = None

    def program(x):
        y = x if Cache.last is None else x + Cache.last
        Cache.last = y * 2
        return y

    return program


@programs.made()
def class_list_is_changed():
    class A:
        items: list = []

    def program(x):
        A.items.append(len(A.items))
        return x + len(A.items)

    program.watched = (A.items,)
    return program


@programs.made()
def method_replaced_on_class():
    class A:
        def f(self, v):
            return v + 1

    a = A()

    def program(x):
        y = a.f(x)
        A.f = lambda self, v: v * 10
        return y, a.f(x)

    return program


@programs.made()
def module_attribute_written():
    import types

    module = types.ModuleType("made")
    module.n = 1

    def program(x):
        module.n = module.n + 1
        return x * module.n

    return program


@programs()
def bound_methods(x):
    p = Plain(x)
    f = p.scaled
    return f(2), f.__self__ is p, f.__func__ is Plain.scaled, Plain.scaled(p, 3), f == p.scaled, f is p.scaled


# -- properties and descriptors -----------------------------------------------------------------------------------------------


class Prop:
    def __init__(self, v):
        self._v = v
        self.log = []

    @property
    def v(self):
        self.log.append("get")
        return self._v

    @v.setter
    def v(self, value):
        self.log.append("set")
        self._v = value

    @v.deleter
    def v(self):
        self.log.append("del")
        self._v = None

    @property
    def readonly(self):
        return self._v * 2


@programs(*each(lambda: Prop(2)))
def property_get_set_delete(x, p):
    y = x * p.v
    p.v = 7
    z = p.readonly
    try:
        p.readonly = 1
    except AttributeError as error:
        z = z, str(error)
    p.v += 1
    del p.v
    return y, z, p.log, p._v


@programs()
def property_raises_attribute_error(x):
    class A:
        @property
        def bad(self):
            raise AttributeError("inner")

        def __getattr__(self, name):
            return f"hook {name}"

    return A().bad, hasattr(A(), "bad"), x


class Typed:
    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        return instance.__dict__.get(self.name, self.default)

    def __set__(self, instance, value):
        if value is None:
            raise TypeError(f"{self.name} may not be None")
        instance.__dict__[self.name] = value

    def __delete__(self, instance):
        instance.__dict__.pop(self.name)


class NonData:
    def __get__(self, instance, owner):
        return "computed" if instance is not None else owner.__name__


class Described:
    a = Typed(1)
    b = Typed("b")
    lazy = NonData()


@programs(*each(Described))
def descriptors_of_outside_instance(x, d):
    out = [d.a, d.lazy, Described.lazy]
    d.a = 5
    d.lazy = "own"
    try:
        d.b = None
    except TypeError as error:
        out.append(str(error))
    out += [d.a, d.lazy, d.__dict__]
    del d.a
    return x * d.a, out


@programs()
def descriptors_of_fresh_instance(x):
    d = Described()
    d.a = x
    y = d.a + 1
    del d.a
    return y, d.a, d.b, isinstance(Described.a, Typed)


@programs()
def classmethod_and_staticmethod_kinds(x):
    class A:
        n = 2

        @classmethod
        def c(cls, v):
            return v * cls.n

        @staticmethod
        def s(v):
            return v + 1

    class B(A):
        n = 3

    return A.c(x), B.c(x), B().c(x), A.s(x), A().s(x), B.c.__self__ is B


# -- slots ---------------------------------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class SlottedChild(Slotted):
    __slots__ = ("c",)


@programs(*each(lambda: Slotted(2)))
def slots_of_outside_instance(x, s):
    s.a += 1
    s.b = x * s.a
    y = s.b
    del s.b
    out = [hasattr(s, "b")]
    for f in (lambda: s.b, lambda: setattr(s, "z", 1)):
        try:
            f()
        except AttributeError as error:
            out.append(str(error))
    return y, out, s.a


@programs()
def slots_of_fresh_instance(x):
    s = SlottedChild(x)
    s.c = 3
    try:
        s.d = 1
    except AttributeError as error:
        return s.a * s.c, str(error), s


# -- attribute hooks -------------------------------------------------------------------------------------------------------------


class Hooked:
    def __init__(self, v):
        self.v = v

    def __getattr__(self, name):
        if name.startswith("x_"):
            return self.v * len(name)
        raise AttributeError(f"no {name}")


class Recording:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        super().__delattr__(name)

    def __getattribute__(self, name):
        return super().__getattribute__(name)


@programs(*each(lambda: Hooked(2)))
def getattr_hook(x, h):
    try:
        h.other
    except AttributeError as error:
        return x * h.x_abc, str(error), getattr(h, "q", "default"), hasattr(h, "x_"), h.v


@programs(*each(Recording))
def setattr_and_delattr_hooks(x, r):
    r.a = x
    r.b = 2
    del r.b
    return r.a + 1, r.log


@programs()
def getattribute_override(x):
    class A:
        def __init__(self):
            self.n = 1

        def __getattribute__(self, name):
            if name == "magic":
                return 42
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            return "fallback " + name

    a = A()
    return a.magic, a.n, a.other, x


@programs()
def dict_of_instance_written(x):
    p = Plain(1)
    p.__dict__["w"] = x
    p.__dict__.update(z=2)
    return p.w + p.z, sorted(vars(p))


@programs(*each(Plain))
def dict_of_outside_instance_written(x, p):
    p.__dict__["w"] = x + 1
    p.__dict__["v"] += 1
    return p.w, p.v, sorted(p.__dict__)


@programs()
def instance_class_is_changed(x):
    class A:
        def f(self):
            return "A"

    class B:
        def f(self):
            return "B"

    a = A()
    a.__class__ = B
    return a.f(), type(a).__name__, x


# -- inheritance ---------------------------------------------------------------------------------------------------------------------


class Base:
    def __init__(self, v, **rest):
        super().__init__(**rest)
        self.v = v
        self.order = [*getattr(self, "order", []), "Base"]

    def f(self, x):
        return x + self.v


class Left(Base):
    def f(self, x):
        return super().f(x) * 2


class Right(Base):
    def f(self, x):
        return super(Right, self).f(x) + 100


class Both(Left, Right):
    def f(self, x):
        return -super().f(x)


@programs(*each(lambda: Both(1)))
def diamond_inheritance(x, b):
    return b.f(x), [c.__name__ for c in Both.__mro__], isinstance(b, Right), b.order


@programs()
def super_in_classmethod_and_property(x):
    class A:
        @classmethod
        def make(cls):
            return cls()

        @property
        def p(self):
            return x + 1

    class B(A):
        @classmethod
        def make(cls):
            b = super().make()
            b.extra = 1
            return b

        @property
        def p(self):
            return super().p * 2

    return B.make().p, B.make().extra


@programs()
def super_errors(x):
    class A:
        def f(self):
            return super().f()

    try:
        A().f()
    except AttributeError as error:
        return str(error), x


@programs(breaks=True)
def init_subclass_and_set_name(x):
    registry = {}

    class A:
        def __init_subclass__(cls, key=None, **rest):
            super().__init_subclass__(**rest)
            registry[key] = cls.__name__

    class B(A, key="b"):
        pass

    return registry, B.__name__, x


class Meta(type):
    def __new__(mcs, name, bases, space, **rest):
        cls = super().__new__(mcs, name, bases, space)
        cls.tag = name.lower()
        return cls

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.by_meta = True
        return made

    def __len__(cls):
        return 5

    def __contains__(cls, item):
        return item == "in"

    @property
    def prop(cls):
        return cls.__name__ * 2

    def __iter__(cls):
        return iter([1, 2])

    def __getattr__(cls, name):
        if name == "virtual":
            return "v"
        raise AttributeError(name)

    def __instancecheck__(cls, instance):
        return instance == 3 or type.__instancecheck__(cls, instance)


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@programs(breaks=True)
def metaclass_behaviour(x):
    w = WithMeta(x)
    return (
        w.by_meta, w.v, WithMeta.tag, len(WithMeta), "in" in WithMeta, WithMeta.prop, list(WithMeta), WithMeta.virtual,
        isinstance(3, WithMeta), isinstance(4, WithMeta), isinstance(w, WithMeta), hasattr(WithMeta, "nope"),
    )  # fmt: skip


@programs(breaks=True)
def metaclass_class_made_inside(x):
    class C(metaclass=Meta):
        pass

    return C.tag, len(C), x


@programs()
def new_and_singleton(x):
    class One:
        _it = None

        def __new__(cls, *args):
            made = super().__new__(cls)
            made.args = args
            return made

        def __init__(self, a):
            self.a = a

    class Other:
        def __new__(cls):
            return 7

    return One(x).args, One(2).a, Other()


@programs.made()
def singleton_kept_on_class():
    class Single:
        _it = None

        def __new__(cls):
            if cls._it is None:
                cls._it = super().__new__(cls)
                cls._it.n = 0
            return cls._it

    def program(x):
        s = Single()
        s.n += 1
        return x + s.n, s is Single()

    return program


# -- operators -------------------------------------------------------------------------------------------------------------------------


@functools.total_ordering
class Num:
    def __init__(self, n):
        self.n = n

    def _v(self, o):
        return o.n if isinstance(o, Num) else o

    def __add__(self, o):
        return Num(self.n + self._v(o))

    def __radd__(self, o):
        return Num(("r", o, self.n))

    def __iadd__(self, o):
        self.n = self.n + self._v(o)
        return self

    def __sub__(self, o):
        return NotImplemented

    def __rsub__(self, o):
        return "rsub"

    def __mul__(self, o):
        return Num(self.n * self._v(o))

    def __matmul__(self, o):
        return ("@", self.n)

    def __neg__(self):
        return Num(-self.n)

    def __invert__(self):
        return "inv"

    def __pos__(self):
        return "pos"

    def __abs__(self):
        return abs(self.n)

    def __eq__(self, o):
        return isinstance(o, Num) and self.n == o.n

    def __lt__(self, o):
        return self.n < self._v(o)

    def __hash__(self):
        return hash(self.n)

    def __bool__(self):
        return self.n != 0

    def __len__(self):
        return 2

    def __getitem__(self, i):
        if isinstance(i, slice):
            return i.start, i.stop
        if i > 2:
            raise IndexError(i)
        return self.n * i

    def __setitem__(self, i, v):
        self.n = (i, v)

    def __delitem__(self, i):
        self.n = ("deleted", i)

    def __contains__(self, i):
        return i == self.n

    def __call__(self, *a, **k):
        return a, k, self.n

    def __index__(self):
        return self.n

    def __int__(self):
        return int(self.n)

    def __float__(self):
        return float(self.n)

    def __repr__(self):
        return f"Num({self.n})"

    def __divmod__(self, o):
        return "divmod"

    def __floordiv__(self, o):
        return "//"

    def __pow__(self, o, m=None):
        return ("**", o, m)

    def __and__(self, o):
        return "&"

    def __rshift__(self, o):
        return ">>"

    def __reversed__(self):
        return iter([2, 1])

    def __round__(self, n=None):
        return ("round", n)


@programs(*each(lambda: Num(2)))
def operators_of_outside_instance(x, n):
    return operator_results(x, n)


@programs()
def operators_of_fresh_instance(x):
    return operator_results(x, Num(3))


def operator_results(x, n):
    m = Num(1)
    out = [n + m, n + 1, 5 + n, n * 2, n @ m, -n, ~n, +n, abs(n), n == m, n != m, n < m, n >= m, bool(n), not n]
    out += [len(n), n[1], n[1:2], 2 in n, n(1, k=2), list(range(5))[m], int(n), float(n), repr(n), f"{n}", divmod(n, 1)]
    out += [
        n // 1,
        n**2,
        pow(n, 2, 3),
        n & 1,
        n >> 1,
        list(reversed(n)),
        round(n),
        round(n, 1),
        5 - n,
        list(n),
        {n: 1}[Num(n.n)],
    ]
    try:
        n - 1
    except TypeError as error:
        out.append(str(error))
    p = n
    n += 1
    out += [p is n, n.n]
    n[4] = x
    out.append(n.n)
    del n[3]
    out.append(n.n)
    return out


@programs()
def operators_with_tensors(x):
    class W:
        def __init__(self, t):
            self.t = t

        def __add__(self, o):
            return W(self.t + (o.t if isinstance(o, W) else o))

        def __rmul__(self, o):
            return ("rmul", self.t * o)

        def __radd__(self, o):
            return ("radd", o)

    w = W(x)
    return (w + 1).t, (w + w).t, (w + x).t, 2 * w


@programs()
def comparison_returns_non_bool(x):
    class A:
        def __eq__(self, o):
            return [o]

        __hash__ = None

        def __lt__(self, o):
            return "lt"

    try:
        hash(A())
    except TypeError as error:
        return A() == 3, A() < 1, A() > A(), str(error), x


@programs()
def iterator_class(x):
    class It:
        def __init__(self, n):
            self.i = 0
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.i == self.n:
                raise StopIteration
            self.i += 1
            return x * self.i

    return list(It(2)), sum(It(3)), next(It(1)), [a for a in It(1)], tuple(zip(It(2), It(2))), max(1, *[1])


@programs()
def iteration_through_getitem(x):
    class Seq:
        def __getitem__(self, i):
            if i == 3:
                raise IndexError
            return x + i

    a, b, c = Seq()
    return list(Seq()), a - c, b


@programs(*each(lambda: Plain([1, 2, 3])))
def iteration_of_outside_class(x, p):
    class Wrap:
        def __init__(self, p):
            self.p = p

        def __iter__(self):
            yield from self.p.v

    return [x * i for i in Wrap(p)], sum(Wrap(p))


@programs()
def length_hint_bool_from_len(x):
    class L:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

    return bool(L(0)), bool(L(1)), x if L(0) else -x


@programs()
def class_getitem_and_generic(x):
    class A:
        def __class_getitem__(cls, key):
            return f"{cls.__name__}[{key}]"

    return A[3], x


@programs()
def list_and_dict_subclasses(x):
    class L(list):
        def __init__(self, *a):
            super().__init__(*a)
            self.tag = "l"

        def append(self, v):
            super().append(v)
            super().append(v)

    class D(dict):
        def __setitem__(self, k, v):
            super().__setitem__(k + "!", v)

    v = L([1])
    v.append(x)
    d = D()
    d["a"] = x
    return v, len(v), v.tag, list(d), d["a!"], isinstance(v, list), v[1:], sorted(d.items())[0][0]


class ListChild(list):
    pass


class DictChild(dict):
    pass


@programs(*each(lambda: ListChild([1, 2])))
def list_subclass_from_outside(x, v):
    return x * v[0], len(v), list(v), v + [3], 2 in v


@programs(*each(lambda: DictChild(a=1)))
def dict_subclass_from_outside(x, d):
    return x * d["a"], len(d), list(d), "b" in d, d.get("z"), dict(d)


@programs(*each(lambda: ListChild([1, 2])), breaks=True)
def list_subclass_from_outside_changed(x, v):
    v.append(5)
    v[0] = 3
    return x * v[0], len(v)


@programs(*each(lambda: DictChild(a=1)))
def dict_subclass_from_outside_changed(x, d):
    d["b"] = 2
    return x * d["b"], list(d)


@programs(breaks=True)
def int_and_str_subclasses(x):
    class I(int):
        def double(self):
            return self * 2

    class S(str):
        pass

    i = I(3)
    s = S("abc")
    return i + 1, i.double(), x * i, s.upper(), len(s), type(i).__name__, i == 3


@programs()
def exception_hierarchy(x):
    class A(Exception):
        code = 1

    class B(A):
        code = 2

    out = []
    for e in (A, B):
        try:
            raise e("m")
        except B as error:
            out.append(("B", error.code))
        except A as error:
            out.append(("A", error.code))
    return out, x


@programs()
def callable_instances_and_partial_methods(x):
    class C:
        def __init__(self, k):
            self.k = k

        def __call__(self, v, *, add=0):
            return v * self.k + add

    c = C(2)
    return c(x), c(x, add=1), list(map(c, [1, 2])), functools.partial(c, add=5)(x), callable(c)


@programs()
def instance_in_boolean_context_and_identity(x):
    a, b = Plain(), Plain()
    return a is a, a is b, a == b, bool(a), a in [b, a], [a].index(a), {a: 1}[a], a or b is b, x


@programs(*tuple((lambda: (vector(), (p := Plain(3)), p)) for _ in range(2)), lambda: (vector(), Plain(3), Plain(3)))
def same_instance_twice(x, a, b):
    a.v += 1
    return a is b, x * b.v


@programs()
def private_names_and_dunder_class(x):
    class A:
        def __init__(self):
            self.__secret = 1

        def get(self):
            return self.__secret, __class__.__name__, self.__class__ is A

    return A().get(), A()._A__secret, x


@programs(breaks=True)
def destructor_runs(x):
    log = []

    class A:
        def __del__(self):
            log.append("del")

    a = A()
    del a
    return log, x


@programs()
def context_manager_in_class_with_state(x):
    class Timer:
        depth = 0

        def __enter__(self):
            self.depth += 1
            return self.depth

        def __exit__(self, *a):
            self.depth -= 1

    t = Timer()
    with t as a, t as b:
        inner = t.depth
    return a, b, inner, t.depth, x


@programs.made()
def instances_linked_in_a_cycle():
    class Node:
        def __init__(self, v):
            self.v = v
            self.next = self

    a, b = Node(1), Node(2)
    a.next, b.next = b, a

    def program(x):
        n = a
        for _ in range(3):
            n.v += 1
            x = x * n.v
            n = n.next
        return x

    program.watched = (a, b)
    return program


@programs()
def linked_list_made_inside(x):
    class Node:
        def __init__(self, v, rest=None):
            self.v = v
            self.rest = rest

    n = None
    for i in range(3):
        n = Node(x + i, n)
    out = []
    while n:
        out.append(n.v)
        n = n.rest
    return out


@programs()
def fresh_cycle_is_returned(x):
    class Node:
        pass

    a, b = Node(), Node()
    a.other, b.other, a.t = b, a, x + 1
    return a


class Telling(Plain):
    def scaled(self, k):
        print("scaled")
        return super().scaled(k)


@programs(*each(Telling), breaks=True)
def super_behind_an_exit_sees_its_first_argument(x, p):
    return p.scaled(2), x


# -- tensors with hooks ----------------------------------------------------------------------------------------------------------------


class Sub(torch.Tensor):
    pass


class Logged(torch.Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Duck:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = tuple(a.t if isinstance(a, Duck) else a for a in args)
        return Duck(func(*args, **(kwargs or {})) * 10)


@programs(*tuple((lambda: (vector().as_subclass(Sub),)) for _ in range(2)))
def tensor_subclass(x):
    y = x + 1
    return y * 2, type(y).__name__, isinstance(y, Sub)


@programs.made(*tuple((lambda: (vector().as_subclass(Logged),)) for _ in range(2)))
def tensor_subclass_with_torch_function():
    Logged.seen = []

    def program(x):
        y = x + 1
        return torch.sin(y), len(Logged.seen)

    return program


@programs(*each(lambda: Duck(vector(2))))
def duck_tensor_with_torch_function(x, d):
    return torch.add(d, 1).t, torch.add(x, d).t, torch.nn.functional.relu(d).t


class Mode(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", "?"))
        if func is torch.add:
            func = torch.sub
        return func(*args, **(kwargs or {}))


@programs()
def torch_function_mode_inside(x):
    m = Mode()
    with m:
        y = torch.add(x, 1)
        z = torch.sin(y)
    return y, z, m.names, torch.add(x, 1)


@programs.made()
def torch_function_mode_around():
    def inner(x):
        return torch.add(x, 5)

    def program(x):
        return inner(x), torch.mul(x, 2)

    def run(x):
        with Mode() as m:
            out = program(x)
        return out, m.names

    return run


@programs()
def disable_torch_function(x):
    with torch._C.DisableTorchFunctionSubclass():
        return x + 1


@programs(breaks=True)
def parameter_and_requires_grad(x):
    p = torch.nn.Parameter(torch.ones(6))
    y = x * p
    return y, y.requires_grad, p.is_leaf, isinstance(p, torch.nn.Parameter), p.detach()


@programs()
def tensor_attributes_of_fresh(x):
    y = x + 1
    y.tag = "mine"
    return y, y.tag, hasattr(y, "none")


class Node:
    def __init__(self, parent: Any = None) -> None:
        self.children: list[Any] = []
        self.parent = None if parent is None else weakref.ref(parent)


@programs(*[lambda: (vector(), Node())] * 2)
def weak_references_made_inside(x, given):
    child = Node(given)
    root = Node()
    root.children.append(Node(root))
    given.children.append(root)
    same = weakref.ref(root) is weakref.ref(root), {weakref.ref(root): 1}[weakref.ref(root)]
    gone = weakref.ref(Node())
    return x + 1, child.parent() is given, root.children[0].parent() is root, same, gone() is None, given
