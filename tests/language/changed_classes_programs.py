"""Classes that users write, changed between calls: dataclasses, enums, named tuples, descriptors, hooks of classes."""

import abc
import collections
import dataclasses
import enum
import functools
import typing
import weakref

import torch
from scenario import Registry, v

scenario = Registry()


@scenario
def dataclass_with_post_init_and_factories(start):
    made = []

    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        tags: list = dataclasses.field(default_factory=lambda: [1, 2])
        seen: int = dataclasses.field(init=False, default=0)

        def __post_init__(self):
            self.seen = len(self.tags) + len(made)
            made.append(self.scale)

    def program(x):
        c = Config(scale=3.0)
        c.tags.append(c.seen)
        return (x * c.scale + sum(c.tags), c)

    c = start(program, made)
    c(v())
    c(v())
    old = Config.__post_init__
    Config.__post_init__ = lambda self: setattr(self, "seen", -1)
    c(v())
    del Config.__post_init__

    Config.__post_init__ = old
    c(v())
    made.clear()
    c(v())


@scenario
def frozen_dataclass_replaced_and_hashed(start):

    @dataclasses.dataclass(frozen=True)
    class Shape:
        h: int
        w: int = 3

        @property
        def area(self):
            return self.h * self.w

    table = {Shape(1): 10.0, Shape(2): 20.0}
    held = [Shape(1)]

    def program(x):
        s = dataclasses.replace(held[0], h=held[0].h + 1)
        try:
            s.h = 5
        except dataclasses.FrozenInstanceError as error:
            note = str(error)
        return (x * s.area + table.get(s, -1.0), s, s == Shape(2), note, dataclasses.astuple(s), dataclasses.asdict(s))

    c = start(program, held)
    c(v())
    c(v())
    held[0] = Shape(0)
    c(v())
    held[0] = Shape(0, 7)
    c(v())
    table[Shape(1, 7)] = 70.0
    c(v())
    object.__setattr__(held[0], "w", 4)
    c(v())
    Shape.area = property(lambda self: 1000)
    c(v())


@scenario
def dataclass_fields_and_metadata(start):

    @dataclasses.dataclass(order=True, slots=True)
    class Point:
        x: float
        y: float = dataclasses.field(default=1.0, metadata={"weight": 3.0}, compare=False)

    points = [Point(3.0), Point(1.0, 9.0), Point(2.0)]

    def program(t):
        total = 0.0
        for f in dataclasses.fields(Point):
            total += f.metadata.get("weight", 1.0) * sum(getattr(p, f.name) for p in points)
        low = min(points)
        return (t * total + low.y, sorted(points)[0] is low, [p.x for p in sorted(points)])

    c = start(program, points)
    c(v())
    c(v())
    points[0].x = 0.5
    c(v())
    points.append(Point(0.1, 2.0))
    c(v())
    points[-1].y = -1.0
    c(v())


@scenario
def flags_combined(start):

    class Mode(enum.Flag):
        NONE = 0
        SCALE = enum.auto()
        SHIFT = enum.auto()
        BOTH = SCALE | SHIFT

    class Bits(enum.IntFlag):
        A = 1
        B = 2
        C = 4

    state = {"mode": Mode.SCALE, "bits": Bits.A | Bits.C}

    def program(x):
        m = state["mode"]
        if Mode.SCALE in m:
            x = x * 2
        if m & Mode.SHIFT:
            x = x + 1
        if m == Mode.BOTH:
            x = x - 3
        if not m:
            x = -x
        b = state["bits"] ^ Bits.B
        return (x + int(b), m | Mode.SHIFT, ~m, b, b.value, Bits.B in b, bool(m), m.name)

    c = start(program)
    c(v())
    for mode in (Mode.SHIFT, Mode.BOTH, Mode.NONE, Mode.SCALE):
        state["mode"] = mode
        c(v())
    state["bits"] = Bits.B
    c(v())
    state["bits"] = Bits(7)
    c(v())


@scenario
def enum_with_methods_and_values(start):

    class Act(enum.Enum):
        RELU = "relu"
        TANH = "tanh"

        def apply(self, x):
            return getattr(torch, self.value)(x)

        @classmethod
        def _missing_(cls, value):
            return cls.TANH

        @property
        def gain(self):
            return gains[self]

    gains = {Act.RELU: 2.0, Act.TANH: 3.0}

    def program(x, name):
        a = Act(name)
        return (a.apply(x - 3) * a.gain, a.name, Act["RELU"] is a, [m.value for m in Act], len(Act))

    c = start(program)
    c(v(), "relu")
    c(v(), "tanh")
    c(v(), "other")
    gains[Act.TANH] = 30.0
    c(v(), "tanh")
    c(v(), "other")
    Act.apply = lambda self, x: x * 0
    c(v(), "relu")
    Act._missing_ = classmethod(lambda cls, value: cls.RELU)
    c(v(), "another")
    c(v(), "relu")


@scenario
def named_tuple_class_of_typing(start):

    class Out(typing.NamedTuple):
        y: torch.Tensor
        n: int = 1

        def total(self):
            return self.y.sum() * self.n

    held = [Out(v(), 2)]

    def program(x):
        o = Out(x + held[0].n)
        p = held[0]._replace(n=5)
        y, n = p
        return (o, p, o.total(), o._asdict(), Out._fields, y * n, Out._make([x, 3]), o[1:], Out._field_defaults["n"])

    c = start(program)
    c(v())
    held[0] = Out(v(2), 3)
    c(v())
    held[0] = Out(v(2), 4.5)
    c(v())
    Out.total = lambda self: self.y * 0
    c(v())
    Out.__new__.__defaults__ = (9,)
    c(v())


@scenario
def descriptors_that_are_given_their_names(start):
    log = []

    class Positive:
        def __set_name__(self, owner, name):
            self.name = "_" + name
            self.limit = 0

        def __get__(self, obj, owner=None):
            return self if obj is None else getattr(obj, self.name)

        def __set__(self, obj, value):
            if value < self.limit:
                raise ValueError(f"{self.name}: {value}")
            log.append(value)
            setattr(obj, self.name, value)

    class Layer:
        rate = Positive()
        gain = Positive()

        def __init__(self):
            self.rate = 1.0
            self.gain = 2.0

    layer = Layer()

    def program(x, by):
        layer.rate = layer.rate + by
        fresh = Layer()
        fresh.gain = layer.rate
        return (x * layer.rate + fresh.gain, Layer.rate.name)

    c = start(program, layer, log)
    c(v(), 1)
    c(v(), 1)
    c(v(), -10)
    Layer.rate.limit = -100
    c(v(), -10)
    Layer.rate.name = "_gain"
    c(v(), 1)
    Positive.__get__ = lambda self, obj, owner=None: self if obj is None else 4.0
    c(v(), 1)


@scenario
def subclasses_that_register_themselves(start):
    registry = {}

    class Base:
        def __init_subclass__(cls, *, key=None, **kwargs):
            super().__init_subclass__(**kwargs)
            registry[key or cls.__name__] = cls

        def __call__(self, x):
            return x

    class Twice(Base, key="twice"):
        def __call__(self, x):
            return x * 2

    def program(x):
        for name, cls in registry.items():
            x = cls()(x) + len(name)
        return (x, [c.__name__ for c in Base.__subclasses__()], list(registry))

    c = start(program)
    c(v())

    class Shift(Base):
        def __call__(self, x):
            return x + 1

    c(v())
    Twice.__call__ = lambda self, x: x * 20
    c(v())
    del registry["twice"]
    c(v())
    registry["twice"] = Base
    c(v())


@scenario
def class_that_is_subscripted(start):

    class Scaled:
        table = {"half": 0.5, 2: 2.0}

        def __class_getitem__(cls, key):
            return cls.table[key]

    class Box(typing.Generic[typing.TypeVar("T")]):
        def __init__(self, x):
            self.x = x

    def program(x, key):
        return (x * Scaled[key], Box[int](x).x + 1)

    c = start(program)
    c(v(), "half")
    c(v(), 2)
    c(v(), 3)
    Scaled.table["half"] = 0.25
    c(v(), "half")
    Scaled.table = collections.defaultdict(lambda: 7.0)
    c(v(), "half")
    c(v(), 3)
    Scaled.__class_getitem__ = classmethod(lambda cls, key: 11.0)
    c(v(), 3)


@scenario
def attributes_by_dunder_getattr_and_dir(start):

    class Config:
        def __init__(self):
            self.__dict__["_values"] = {"scale": 2.0}

        def __getattr__(self, name):
            try:
                return self._values[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name, value):
            self._values[name] = value

        def __delattr__(self, name):
            del self._values[name]

    config = Config()

    def program(x):
        config.calls = getattr(config, "calls", 0) + 1
        if hasattr(config, "shift"):
            x = x + config.shift
            del config.shift
        return x * config.scale + config.calls

    c = start(program, config)
    c(v())
    c(v())
    config.shift = 5.0
    c(v())
    c(v())
    config.scale = 3.0
    c(v())
    config.__dict__["scale"] = 4.0
    c(v())
    del config.__dict__["scale"]
    del config.scale
    c(v())


@scenario
def partial_methods_and_single_dispatch_methods(start):

    class Net:
        scale = 2.0

        def act(self, x, *, by=1.0):
            return x * by * self.scale

        double = functools.partialmethod(act, by=2.0)

        @functools.singledispatchmethod
        def describe(self, value):
            return 0

        @describe.register
        def _(self, value: int):
            return value + self.scale

        @describe.register
        def _(self, value: list):
            return len(value)

        @functools.cached_property
        def width(self):
            return self.scale * 10

    net = Net()

    def program(x, value):
        return (net.double(x) + net.describe(value), net.width)

    c = start(program, net)
    c(v(), 1)
    c(v(), [1, 2])
    c(v(), "text")
    net.scale = 3.0
    c(v(), 1)
    del net.width
    c(v(), 1)
    Net.describe.register(str, lambda self, value: 100)
    c(v(), "text")
    Net.double = functools.partialmethod(Net.act, by=5.0)
    c(v(), [1])


@scenario
def abstract_base_classes_of_collections(start):

    class Bag:
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __iter__(self):
            return iter(self.items)

        def __contains__(self, item):
            return item in self.items

    class Row(collections.abc.Sequence):
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

    bag, row = Bag([1, 2]), Row([3, 4, 3])

    def program(x):
        kinds = [
            isinstance(bag, k) for k in (collections.abc.Sized, collections.abc.Collection, collections.abc.Mapping)
        ]
        kinds.append(isinstance(bag, collections.abc.Sequence))
        x = x + sum(row) + row.index(4) + row.count(3) + len(list(reversed(row)))
        if 2 in bag and 4 in row:
            x = x * 2
        return (x, kinds)

    c = start(program)
    c(v())
    bag.items = [5]
    c(v())
    row.items.insert(0, 9)
    c(v())
    collections.abc.Sequence.register(Bag)
    c(v())
    del Bag.__contains__
    c(v())
    Row.__getitem__ = lambda self, i: self.items[::-1][i]
    c(v())


@scenario
def abstract_methods_filled_in(start):

    class Stage(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

        @property
        @abc.abstractmethod
        def gain(self): ...

    class Real(Stage):
        gain = 2.0

        def run(self, x):
            return x * self.gain

    class Half(Stage):
        def run(self, x):
            return x

    def program(x, cls):
        try:
            stage = cls()
        except TypeError as error:
            return (x, str(error))
        return (stage.run(x), sorted(cls.__abstractmethods__))

    c = start(program)
    c(v(), Real)
    c(v(), Half)
    Real.gain = 3.0
    c(v(), Real)
    Half.gain = 4.0
    c(v(), Half)
    abc.update_abstractmethods(Half)
    c(v(), Half)


@scenario
def operators_by_reflection_and_in_place(start):

    class Scale:
        def __init__(self, by):
            self.by = by

        def __mul__(self, other):
            return Scale(self.by * other) if isinstance(other, (int, float)) else NotImplemented

        def __rmul__(self, other):
            return other * self.by

        def __imul__(self, other):
            self.by *= other
            return self

        def __matmul__(self, other):
            return (self.by, other)

        def __neg__(self):
            return Scale(-self.by)

        def __eq__(self, other):
            return isinstance(other, Scale) and self.by == other.by

        __hash__ = None

        def __call__(self, x):
            return x * self.by

    s = Scale(2.0)

    def program(x):
        global_scale = s
        y = 3 * s + (s * 2)(x)
        global_scale *= 2
        return (y, s == Scale(4.0), -s, s @ 1)

    c = start(program, s)
    c(v())
    c(v())
    s.by = 2.0
    c(v())
    Scale.__rmul__ = lambda self, other: 0.5
    c(v())
    Scale.__imul__ = lambda self, other: NotImplemented
    c(v())
    del Scale.__imul__
    c(v())


@scenario
def slots_properties_and_class_counters(start):

    class Node:
        __slots__ = ("__weakref__", "_value", "next")
        made = 0

        def __init__(self, value, next=None):
            self._value = value
            self.next = next
            type(self).made += 1

        @property
        def value(self):
            return self._value

        @value.setter
        def value(self, value):
            self._value = value * 2

        @value.deleter
        def value(self):
            del self._value

    head = Node(1.0, Node(2.0, Node(3.0)))

    def program(x):
        node = head
        while node is not None:
            x = x * node.value
            node.value = node.value
            node = node.next
        return (x, Node(0).value, Node.made)

    c = start(program, head)
    c(v())
    c(v())
    head.next.next.next = Node(5.0)
    c(v())
    del head.next.value
    c(v())
    head.next.value = 1.0
    Node.made = 100
    c(v())


@scenario
def weak_references_in_a_registry(start):

    class Part:
        def __init__(self, by):
            self.by = by

    parts = [Part(2.0), Part(3.0)]
    listeners = weakref.WeakSet(parts)
    by_name = weakref.WeakValueDictionary(a=parts[0], b=parts[1])

    def program(x):
        total = sum(p.by for p in listeners)
        return (x * total + len(listeners), sorted(by_name), "a" in by_name, by_name.get("b") is not None)

    c = start(program)
    c(v())
    parts[0].by = 5.0
    c(v())
    parts.pop()
    c(v())
    extra = Part(7.0)
    listeners.add(extra)
    c(v())
    by_name["c"] = extra
    c(v())
    listeners.discard(extra)
    c(v())


@scenario
def metaclass_with_prepare_and_call(start):
    made = []

    class Single(type):
        instances = {}

        def __call__(cls, *args):
            if cls not in Single.instances:
                Single.instances[cls] = super().__call__(*args)
                made.append(cls.__name__)
            return Single.instances[cls]

        def __len__(cls):
            return len(cls.registry)

        def __iter__(cls):
            return iter(cls.registry)

        def __contains__(cls, item):
            return item in cls.registry

    class Store(metaclass=Single):
        registry = [1, 2]

        def __init__(self):
            self.n = 1

    def program(x):
        s = Store()
        s.n += 1
        return (x * s.n + len(Store), list(Store), 2 in Store, s)

    c = start(program, made)
    c(v())
    c(v())
    Store.registry.append(9)
    c(v())
    Single.instances.clear()
    c(v())
    c(v())
    Single.__len__ = lambda cls: 50
    c(v())


@scenario
def mixins_with_super_in_a_diamond(start):
    class Base:
        def __init__(self, **kw):
            self.trail = ["base"]

        def run(self, x):
            return x + 1

    class Log(Base):
        def __init__(self, *, tag="log", **kw):
            super().__init__(**kw)
            self.trail.append(tag)

        def run(self, x):
            return super().run(x) * 2

    class Clip(Base):
        def __init__(self, *, limit=4.0, **kw):
            super().__init__(**kw)
            self.limit = limit

        def run(self, x):
            return super().run(x).clamp(max=self.limit)

    class Both(Log, Clip):
        pass

    def program(x, **kw):
        b = Both(**kw)
        return (b.run(x), b.trail, [k.__name__ for k in Both.__mro__])

    c = start(program)
    c(v())
    c(v(), limit=3.0)
    c(v(), tag="t")
    Both.__bases__ = (Clip, Log)
    c(v())
    Clip.run = lambda self, x: super(Clip, self).run(x) - 1
    c(v())
    del Log.run
    c(v())
    Base.run = lambda self, x: x * 0
    c(v())
