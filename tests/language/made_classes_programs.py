"""Class statements inside the program: plain classes, dataclasses, named tuples, enumerations, and what is made of them."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import typing

import torch
import torch.utils.checkpoint
from programs import Programs, vector

programs = Programs()


class Base:
    tag = "base"

    def __init__(self, t):
        self.t = t

    def twice(self):
        return self.t * 2


class Registered:
    names: typing.ClassVar[list] = []

    def __init_subclass__(cls, **options):
        Registered.names.append(cls.__name__)


# -- plain classes -------------------------------------------------------------------------------------------------------


@programs()
def plain(x):
    class A:
        k = 2

        def __init__(self, t):
            self.t = t

        def go(self):
            return self.t * self.k

    return A(x).go() + A.k, A.__name__, A.__qualname__, A.__module__, A.__doc__


@programs()
def closure_handed_out(x):
    y = x + 1

    class A:
        def go(self, z):
            return y * z

    return A().go(x), A(), A


@programs(breaks=True)
def closure_behind_an_exit(x):
    y = x + 1

    class A:
        def __init__(self, t):
            self.t = t

        def go(self, z):
            return y * z + self.t

    a = A(x)
    torch._dynamo.graph_break()
    return a.go(x) + A(y).go(y)


@programs(breaks=True)
def super_behind_an_exit(x):
    class A(Base):
        def __init__(self, t):
            super().__init__(t * 2)
            self.u = t

        def twice(self):
            return super().twice() + 1

    a = A(x)
    before = a.twice()
    torch._dynamo.graph_break()
    return before, a.twice(), isinstance(a, Base), type(a).__mro__[1] is Base, A.tag


@programs()
def static_and_class_methods(x):
    class A:
        @staticmethod
        def plus(t):
            return t + 1

        @classmethod
        def make(cls, t):
            a = cls()
            a.t = t
            return a

        @property
        def thrice(self):
            return self.t * 3

        @thrice.setter
        def thrice(self, value):
            self.t = value

    a = A.make(x)
    before = a.thrice + A.plus(x)
    a.thrice = x * 2
    return before, a.thrice, a


@programs()
def slots(x):
    class A:
        __slots__ = ("t", "u")

        def __init__(self, t):
            self.t = t

    a = A(x + 1)
    return a.t * 2, hasattr(a, "u"), [a]


@programs()
def attributes_of_the_class_are_set(x):
    class A:
        n = 0

    for _ in range(3):
        A.n += 1
    A.t = x * 2
    A.gone = 1
    del A.gone
    return (
        A.t + A.n,
        hasattr(A, "gone"),
        A,
        "n" in vars(A),
        sorted(name for name in vars(A) if name < "__"),
        A.__bases__,
    )


@programs()
def operators(x):
    class V:
        def __init__(self, t):
            self.t = t

        def __add__(self, other):
            return V(self.t + other.t)

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return self.t[i]

        def __call__(self, z):
            return self.t * z

        def __eq__(self, other):
            return True

        def __iter__(self):
            return iter([self.t, self.t])

        def __contains__(self, item):
            return item == 1

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

    v = V(x) + V(x)
    with v as w:
        scaled = w(2)
    return scaled + len(v) + v[0], v == w, [t.sum() for t in v], 1 in v


@programs()
def in_the_body(x):
    n = 2

    class A:
        values = tuple(i * n for i in range(3))
        if n > 1:
            big = True
        for q in range(2):
            pass
        del q
        total = sum(values)
        t = x * n

        class Inner:
            k = 4

        inner = Inner()

    return A.t + A.total + A.big, hasattr(A, "q"), A.inner.k, A.Inner.__qualname__


@programs()
def an_unknown_name_in_the_body(x):
    try:

        class A:
            value = missing_name  # noqa: F821

    except NameError as error:
        return x, str(error)
    return A


@programs()
def an_exception(x):
    class E(ValueError):
        def __init__(self, message, t):
            super().__init__(message)
            self.t = t

    try:
        raise E("text", x)
    except ValueError as error:
        return error.t * 2, str(error), error.args, error


@programs()
def containers(x):
    class D(dict):
        def __missing__(self, key):
            return key + 1

    class L(list):
        def total(self):
            return sum(self)

    d = D(a=1)
    values = L([1, 2])
    values.append(3)
    return x + d[4] + d["a"] + values.total(), d, values


@programs()
def classes_in_a_tuple(x):
    class A:
        pass

    class B(A):
        pass

    return x, (A, B, 1), {A: "a"}, issubclass(B, A), A().__class__ is A, type(B()) is A


@programs(breaks=True)
def nodes(x):
    class Node:
        def __init__(self, t, rest=None):
            self.t = t
            self.rest = rest

        def total(self):
            return self.t + (self.rest.total() if self.rest else 0)

        def copy(self):
            return Node(self.t)

    n = Node(x, Node(x * 2))
    torch._dynamo.graph_break()
    return n.total() + n.copy().t


@programs(breaks=True)
def instance_in_its_own_closure(x):
    class A:
        def go(self):
            return a.t + 1

    a = A()
    a.t = x
    torch._dynamo.graph_break()
    return a.go(), a


@programs()
def descriptors(x):
    class D:
        def __get__(self, owner, kind):
            return owner.t * 2

    class A:
        d = D()

        def __getattr__(self, name):
            return 3

    a = A()
    a.t = x
    return a.d, a.other


@programs()
def a_descriptor_that_is_told_its_name(x):
    class D:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, owner, kind):
            return getattr(owner, "_" + self.name)

    class A:
        d = D()

    a = A()
    a._d = x
    return a.d + 1


@programs()
def a_base_that_is_told(x):
    class A(Registered):
        pass

    return x, Registered.names.count("A") > 0, A.__name__


@programs()
def a_decorator(x):
    def add(cls):
        cls.extra = lambda self: x * 5
        return cls

    @add
    class A:
        pass

    return A().extra(), A


@programs.made()
def a_factory():
    def make(k):
        class A:
            def go(self, t):
                return t * k

        return A

    def program(x):
        return make(2)().go(x) + make(3)().go(x)

    return program


@programs.made()
def instances_left_outside():
    kept = []

    def program(x):
        class A:
            def go(self, t):
                return t * 2 + x

        kept.append(A())
        return kept[0].go(x), len({type(each) for each in kept})

    return program


@programs()
def a_layer(x):
    class Scaled(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, t):
            return torch.relu(t) * self.k

    return torch.nn.Sequential(Scaled(2), Scaled(3))(x), Scaled(1).k


# -- metaclasses, and hooks that are called while a class is made --------------------------------------------------------


class Field:
    def __set_name__(self, owner, name):
        self.name = name
        owner.fields = (*getattr(owner, "fields", ()), name)

    def __get__(self, instance, owner):
        return self if instance is None else instance.__dict__[self.name]

    def __set__(self, instance, value):
        instance.__dict__[self.name] = value * 2


class Tagged(type):
    def __new__(meta, name, bases, names, **options):
        made = super().__new__(meta, name, bases, dict(names))
        made.tag = name.lower()
        made.options = options
        return made

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.made = True
        return made

    def __len__(cls):
        return 4


@programs()
def fields_of_a_class(x):
    class P:
        a = Field()
        b = Field()
        c = 1

        def __init__(self, a, b):
            self.a = a
            self.b = b

    p = P(x, 2)
    return p.a + p.b, P.fields, p, P, list(vars(P))[:6], P.a.name


@programs()
def a_descriptor_that_holds_its_class(x):
    class D:
        def __set_name__(self, owner, name):
            self.owner = owner
            self.name = name

    class A:
        d = D()

    return x, A, A.d, A(), A.d.owner is A


@programs(breaks=True)
def a_descriptor_that_raises(x):
    class D:
        def __set_name__(self, owner, name):
            raise ValueError("no")

    try:

        class A:
            d = D()

    except (RuntimeError, ValueError) as error:
        return x, str(error)
    return A


@programs(breaks=True)
def a_field_behind_an_exit(x):
    class P:
        a = Field()

    p = P()
    p.a = x
    torch._dynamo.graph_break()
    p.a = p.a + 1
    return p.a, P.fields, p


@programs()
def a_registry_inside(x):
    class Plugin:
        plugins: typing.ClassVar[list] = []

        def __init_subclass__(cls, /, scale=1, **options):
            super().__init_subclass__(**options)
            cls.scale = scale
            Plugin.plugins.append(cls)

    class Plus(Plugin, scale=3):
        def run(self, t):
            return t + self.scale

    class Times(Plugin):
        def run(self, t):
            return t * 2

    for plugin in Plugin.plugins:
        x = plugin().run(x)
    return x, Plugin.plugins, Plus.scale


@programs()
def an_abstract_registry(x):
    class Kind(abc.ABC):
        kinds: typing.ClassVar[dict] = {}

        def __init_subclass__(cls, /, kind):
            if kind in Kind.kinds:
                raise ValueError("twice " + kind)
            Kind.kinds[kind] = cls

        @abc.abstractmethod
        def run(self, t): ...

    class Plus(Kind, kind="plus"):
        def run(self, t):
            return t + 1

    texts = []
    try:

        class Again(Kind, kind="plus"):
            pass

    except ValueError as error:
        texts.append(str(error))
    try:
        Kind()
    except TypeError as error:
        texts.append(str(error))
    try:

        class Unknown(Kind, other=1):
            pass

    except TypeError as error:
        texts.append(str(error))
    return Kind.kinds["plus"]().run(x), texts, list(Kind.kinds)


@programs()
def keywords_for_nobody(x):
    class A:
        pass

    try:

        class B(A, other=1):
            pass

    except TypeError as error:
        return x, str(error)
    return B


@programs()
def a_metaclass(x):
    class A(metaclass=Tagged, k=[1]):
        def __init__(self, t):
            self.t = t

    class B(A):
        pass

    return A(x).t * len(A) + len(B), A.tag, B.tag, A.options, B.options, A(x).made, type(B) is Tagged, A, B(x)


@programs(breaks=True)
def a_metaclass_inside(x):
    class M(type):
        def __new__(meta, name, bases, names, k=1):
            names["extra"] = k
            return super().__new__(meta, name, bases, names)

        def __init__(cls, name, bases, names, k=1):
            super().__init__(name, bases, names)
            cls.late = k * 2

        @property
        def ten_more(cls):
            return cls.extra + 10

        def __getitem__(cls, i):
            return i * 2

        def __iter__(cls):
            return iter([1, 2])

        def __contains__(cls, i):
            return i == 3

    class A(metaclass=M, k=4):
        d = Field()

        def __init__(self):
            super().__init__()
            self.u = __class__.extra

    a = A()
    a.d = x
    torch._dynamo.graph_break()
    return a.d * A.ten_more + A.late + A[2], list(A), 3 in A, a.u, type(A).__name__, A.fields, isinstance(A, M), A


@programs()
def one_instance_a_class(x):
    made = {}

    class Single(type):
        def __call__(cls, *args):
            if cls not in made:
                made[cls] = super().__call__(*args)
            return made[cls]

    class A(metaclass=Single):
        def __init__(self, t):
            self.t = t

    a, b = A(x), A(x * 2)
    return a.t, a is b, len(made)


@programs()
def attributes_set_by_a_metaclass(x):
    log = []

    class M(type):
        def __setattr__(cls, name, value):
            log.append(name)
            super().__setattr__(name, value)

        def __delattr__(cls, name):
            log.append("-" + name)
            super().__delattr__(name)

        def __getattr__(cls, name):
            return name + "!"

        def __instancecheck__(cls, instance):
            return instance == 3

    class A(metaclass=M):
        pass

    A.z = 3
    A.y = 4
    del A.y
    return x * A.z, log, A.y, isinstance(3, A), A


@programs()
def a_namespace_that_a_metaclass_prepares(x):
    class M(type):
        @classmethod
        def __prepare__(meta, name, bases, **options):
            return {"before": 5}

    class A(metaclass=M):
        q = before + 1  # noqa: F821

    return x * A.q, A.before


@programs()
def an_abstract_metaclass(x):
    class M(abc.ABCMeta):
        def __new__(meta, name, bases, names):
            made = super().__new__(meta, name, bases, names)
            made.missing = len(made.__abstractmethods__)
            return made

    class A(metaclass=M):
        @abc.abstractmethod
        def run(self): ...

    class B(A):
        def run(self):
            return 3

    try:
        A()
    except TypeError as error:
        text = str(error)
    return x * A.missing + B().run(), text, B.missing, isinstance(B(), A), B


@programs(breaks=True)
def a_function_as_metaclass(x):
    def listed(name, bases, names):
        return name, bases, sorted(each for each in names if each[0] != "_")

    class A(metaclass=listed):
        q = 3

    return x, A


@programs()
def classes_made_by_type(x):
    kinds = [type(f"K{i}", (), {"i": i, "__slots__": ("a",)}) for i in range(3)]
    k = kinds[1]()
    k.a = x
    base = type("Base", (Registered,), {"v": 1})
    layer = type("Layer", (base, torch.nn.Module), {"forward": lambda self, t: t * 2})
    return k.a * sum(each.i for each in kinds) + layer()(x), k, base.__module__, layer.__mro__[1] is base


@programs.made(breaks=True)
def a_hook_that_is_replaced():
    class Base:
        def __init_subclass__(cls):
            cls.k = 2

    calls = []

    def program(x):
        class A(Base):
            pass

        return x * A.k, len(calls)

    def watched(x):
        if calls:
            Base.__init_subclass__ = classmethod(lambda cls: setattr(cls, "k", len(calls) + 5))
        calls.append(1)
        torch._dynamo.graph_break()
        return program(x)

    return watched


# -- dataclasses, named tuples, enumerations, abstract classes -----------------------------------------------------------


@programs()
def dataclass(x):
    @dataclasses.dataclass
    class C:
        a: torch.Tensor
        b: list = dataclasses.field(default_factory=list)
        c: int = 4

        def total(self):
            return self.a * self.c + len(self.b)

    made = C(x)
    made.b.append(1)
    other = dataclasses.replace(made, c=5)
    return made.total(), other.total(), made, [field.name for field in dataclasses.fields(made)]


@programs(breaks=True)
def dataclass_behind_an_exit(x):
    @dataclasses.dataclass
    class P:
        a: int = 1

    @dataclasses.dataclass
    class C(P):
        b: float = 2.0

        def __post_init__(self):
            self.z = self.a * self.b

    made = C(3)
    torch._dynamo.graph_break()
    return x * made.z, C(5).z, made == C(3), repr(made)


@programs()
def frozen_dataclass(x):
    @dataclasses.dataclass(frozen=True, order=True)
    class C:
        b: int
        c: int = 2

    made = C(1)
    try:
        made.b = 3
    except dataclasses.FrozenInstanceError:
        x = x + 1
    return x * made.c, made == C(1), made < C(2), hash(made) == hash(C(1))


@programs()
def named_tuple(x):
    class N(typing.NamedTuple):
        a: torch.Tensor
        b: int = 3

        def total(self):
            return self.a + self.b

    n = N(x)
    m = n._replace(b=5)
    return n.total(), m.total(), n, N._fields, N


@programs()
def typed_dict(x):
    class T(typing.TypedDict):
        a: int

    return x, T(a=1), type(T(a=2))


@programs()
def enumerations(x):
    class Mode(enum.Enum):
        A = enum.auto()
        B = enum.auto()
        C = A

        @property
        def twice(self):
            return self.value * 2

    class Number(enum.IntEnum):
        Z = 5

    class Text(str, enum.Enum):
        U = "u"

    m, n = Mode["B"], Mode(1)
    names = [each.name for each in Mode]
    return x * m.value + n.twice, names, Number.Z + 1, Text.U == "u", str(m), Mode.C is Mode.A, m is Mode.B


@programs(breaks=True)
def enumeration_behind_an_exit(x):
    class Flags(enum.Flag):
        P = 1
        Q = 2

    class Mode(enum.Enum):
        A = 1

    both, mode = Flags.P | Flags.Q, Mode.A
    torch._dynamo.graph_break()
    return x * both.value, Flags.P in both, mode is Mode.A, repr(mode)


@programs()
def abstract_class(x):
    class A(abc.ABC):
        @abc.abstractmethod
        def go(self, t): ...

    class B(A):
        def go(self, t):
            return t + 1

    try:
        A()
    except TypeError as error:
        text = str(error)
    return B().go(x), isinstance(B(), A), text


@programs()
def ordered_class(x):
    @functools.total_ordering
    class K:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            return self.n < other.n

        def __eq__(self, other):
            return self.n == other.n

    keys = sorted([K(3), K(1), K(2)])
    return x * keys[0].n + keys[-1].n, max(keys).n, K(1) >= K(2)


@programs(breaks=True)
def a_checkpoint_that_closes_over_a_class(x):
    class A:
        k = 3

        def go(self, t):
            return t.sin() * self.k

    class Mode(enum.Enum):
        TWICE = 2

    def run(t):
        return A().go(t) * Mode.TWICE.value

    return torch.utils.checkpoint.checkpoint(run, x.detach().requires_grad_(), use_reentrant=False)


@programs()
def named_tuples_given_to_torch(x):
    class Two(typing.NamedTuple):
        a: torch.Tensor
        b: torch.Tensor

    two = Two(x, x * 2)
    return torch.stack(two), torch.cat(two), torch.utils._pytree.tree_map(lambda t: t + 1, two)


# -- custom autograd functions -------------------------------------------------------------------------------------------


def wants_grad():
    return (vector().requires_grad_(),)


@programs(wants_grad, wants_grad)
def autograd_function(x):
    scale = 3.0

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * t * scale

        @staticmethod
        def backward(ctx, grad):
            (t,) = ctx.saved_tensors
            return 2 * grad * t * scale

    return Square.apply(x)


@programs(wants_grad, wants_grad, breaks=True)
def autograd_function_over_a_tensor(x):
    weight = x.detach() + 2

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * weight

        @staticmethod
        def backward(ctx, grad):
            return grad * weight * 2

    return Product.apply(x)


class Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, mode):
        ctx.by = mode.value
        return t * mode.value

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by, None


@programs(wants_grad, wants_grad, breaks=True)
def autograd_function_is_given_a_member(x):
    class Mode(enum.Enum):
        TWICE = 2

    return Pooled.apply(x, Mode.TWICE)
