"""More of the standard library and of classes: one behaviour each that the other files leave out."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import random
import string
import sys
import textwrap
import types
import typing
import warnings
import weakref
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()


def two(*values: Any) -> Any:
    return tuple((lambda value=value: (vector(), copy.deepcopy(value))) for value in values)


# -- built-in types -------------------------------------------------------------------------------------------------------


@programs()
def dict_merge_operators(x):
    a = {"a": 1, "x": x}
    b = a | {"b": 2}
    a |= [("c", 3)]
    return a, b, {**a, **b, "d": 4}, dict(a, e=5), dict(zip("pq", (x, 2), strict=True))


@programs(*two({"a": 1, "b": 2}, {"b": 2, "a": 1}))
def order_of_a_dict_from_outside(x, d):
    first = next(iter(d))
    last = d.popitem()
    d.setdefault("z", []).append(1)
    return x + d.get(first, 0), first, last, list(reversed(d))


@programs(*two({1: "a", 1.5: "b", (1, 2): "c", None: "d", True: "e"}))
def dict_keys_of_mixed_types(x, d):
    return x + len(d), d[1], d[True], d.get(1.5), d[1, 2], d[None], 2 in d


@programs()
def dict_changed_while_its_copy_is_iterated(x):
    d = {i: x * i for i in range(4)}
    for k in list(d):
        if k % 2:
            del d[k]
    return d, {k: v for k, v in d.items() if k}, sum(d.values())


@programs(*two({1, 2, 3}, {3, 4}, {1, 2, 3}))
def set_from_outside_in_operations(x, s):
    return x + len(s), s | {9}, s & {3}, s - {1}, s ^ {3}, s <= {1, 2, 3}, s.isdisjoint({7}), sorted(s)


@programs(*two(frozenset({1, 2}), frozenset({3}), frozenset({1, 2})))
def frozenset_as_a_key(x, s):
    table = {frozenset({1, 2}): 1, frozenset({3}): 2}
    return x * table[s], s | {4}, hash(s) == hash(frozenset(s))


@programs(*two(b"abc", b"\x00\xff", b"abc"))
def bytes_from_outside(x, b):
    return x + b[0], b[1:], b.hex(), b + b"z", list(b), int.from_bytes(b, "big"), b.startswith(b"a")


@programs(*two("Some text", "ÄÖ ß", "Some text"))
def text_from_outside(x, s):
    return x * len(s), s.upper(), s.split(), s[::-1], s.encode(), s.title(), s.casefold(), s.partition(" "), s.isascii()


@programs()
def text_methods_with_tables(x):
    table = str.maketrans("abc", "xyz", "d")
    return (
        x,
        "abcd".translate(table),
        "a-b".replace("-", "+"),
        "7".zfill(3),
        "%(k)s" % {"k": 1},
        "{0[1]}".format([1, 2]),
    )


@programs()
def format_specifications(x):
    n, width = 3.14159, 10
    return x, f"{n:.2f}|{n:>{width}.3}|{n!r:<12}|{1000000:,}|{255:#x}|{0.5:%}|{'a':^5}|{n=}", f"{x.shape}{len(x)=}"


@programs()
def integers_and_their_methods(x):
    return (
        x + (7).bit_length(),
        (5).to_bytes(2, "little"),
        (0.75).as_integer_ratio(),
        float.fromhex("0x1.8p1"),
        int("ff", 16),
        (-7) // 2,
        (-7) % 3,
        7 & 3 | 8 ^ 1,
        ~5,
        1 << 4,
        pow(3, 4, 5),
        round(2.5),
        int(-2.7),
        (4).conjugate(),
        True + True,
        (12).bit_count(),
    )


@programs()
def floats_at_their_edges(x):
    inf = float("inf")
    return (
        x,
        inf - inf != inf - inf,
        -0.0 == 0.0,
        math.copysign(1, -0.0),
        0.1 + 0.2,
        1e308 * 10,
        (1.0).is_integer(),
        5.0 // 2,
    )


@programs()
def division_and_overflow_errors(x):
    seen = []
    for f in (lambda: 1 // 0, lambda: 1.0 / 0, lambda: 2.0**5000, lambda: int(float("nan")), lambda: 1 << -1):
        try:
            f()
        except ArithmeticError as error:
            seen.append(type(error).__name__)
        except ValueError as error:
            seen.append(str(error))
    return x, seen


@programs()
def lookup_errors_and_their_texts(x):
    seen = []
    for f in (
        lambda: [][0],
        lambda: {}["k"],
        lambda: (1,)[5],
        lambda: "a".index("b"),
        lambda: [1].remove(2),
        lambda: next(iter(())),
    ):
        try:
            f()
        except (LookupError, ValueError, StopIteration) as error:
            seen.append((type(error).__name__, str(error)))
    return x, seen


@programs()
def type_errors_and_their_texts(x):
    seen = []
    for f in (
        lambda: 1 + "a",
        lambda: len(3),
        lambda: None[0],
        lambda: [] < {},
        lambda: "a" * "b",
        lambda: {[]: 1},
        lambda: -"a",
    ):
        try:
            f()
        except TypeError as error:
            seen.append(str(error))
    return x, seen


@programs()
def bool_of_all_kinds(x):
    return x, [bool(v) for v in (0, 0.0, "", (), [], {}, set(), None, range(0), "a", [0], range(2), 0j, b"", object)]


@programs()
def comparison_of_sequences(x):
    return (
        x,
        (1, 2) < (1, 3),
        [1, [2]] == [1, [2]],
        "a" < "b" <= "b",
        (1,) + (2,) * 2,
        [3] > [2, 9],
        (1, "a") != (1, "a"),
    )


@programs()
def identity_of_small_things(x):
    a = (1, 2)
    b = a[:]
    c = [a]
    return x, b is a, c[0] is a, None is None, () is (), c.copy()[0] is a, x is x, x[:] is x


@programs()
def deletion_of_items_slices_and_names(x):
    v = list(range(10))
    del v[2], v[::3]
    d = {"a": 1, "b": 2}
    del d["a"]
    y = x + 1
    z = y
    del y
    return v, d, z


@programs()
def memoryview_and_bytearray(x):
    b = bytearray(b"abcd")
    b[1:3] = b"XYZ"
    b += b"!"
    return x, bytes(b), b.find(b"Z"), len(b)


# -- collections ------------------------------------------------------------------------------------------------------------


@programs()
def counter_arithmetic(x):
    a, b = collections.Counter("aabbb"), collections.Counter(a=1, c=2)
    return x, a + b, a - b, a & b, a | b, a.most_common(1), sorted(a.elements()), a["zz"], a.total()


@programs()
def deque_with_a_limit(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.rotate(1)
    return list(d), d.maxlen, d[1] is x, d.count(2) if d[1] is None else 0, len(d)


@programs()
def ordered_dict_moves_and_compares(x):
    a = collections.OrderedDict(a=1, b=2)
    b = collections.OrderedDict(b=2, a=1)
    a.move_to_end("a")
    return x, list(a), a == b, dict(a) == dict(b), a.popitem(last=False)


@programs()
def defaultdict_of_tensors(x):
    d = collections.defaultdict(lambda: torch.zeros(6))
    d["a"] = d["a"] + x
    d["b"] += 1
    groups = collections.defaultdict(list)
    for i in range(4):
        groups[i % 2].append(i)
    return dict(d), dict(groups), "c" in d


Point = collections.namedtuple("Point", ["x", "y"], defaults=[0])


@programs(*two(Point(1, 2), Point(3), Point(1, 2)))
def namedtuple_methods(t, p):
    q = p._replace(y=5)
    a, b = q
    return t * p.x, q, p._asdict(), a + b, p == (1, 2), Point._fields, isinstance(p, tuple), Point(*p) == p


class Typed(typing.NamedTuple):
    tensor: torch.Tensor
    scale: float = 2.0

    def scaled(self) -> torch.Tensor:
        return self.tensor * self.scale


@programs()
def typed_namedtuple_with_a_method(x):
    t = Typed(x)
    return t.scaled(), t, t._replace(scale=3.0).scaled(), Typed._field_defaults


# -- functools, itertools, operator, math ------------------------------------------------------------------------------


@programs()
def partial_with_keywords_and_nesting(x):
    def scale(v, *, by, plus=0):
        return v * by + plus

    double = functools.partial(scale, by=2)
    shifted = functools.partial(double, plus=1)
    return double(x), shifted(x), shifted(x, by=3), shifted.keywords, shifted.func is scale


@programs()
def reduce_with_and_without_start(x):
    return (
        functools.reduce(operator.add, [x, x, x]),
        functools.reduce(lambda a, b: a * b, [1, 2, 3], x),
        functools.reduce(max, [3], 1),
    )


@programs()
def itertools_groupby_and_pairwise(x):
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3], key=lambda v: v % 2)]
    return x, groups, list(itertools.pairwise("abc")), list(itertools.combinations(range(3), 2))


@programs()
def itertools_accumulate_and_starmap(x):
    sums = list(itertools.accumulate([x, x, x], initial=x * 0))
    return sums, list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.islice(itertools.count(1, 2), 3))


@programs()
def itertools_chain_cycle_and_takewhile(x):
    cycle = itertools.cycle([1, 2])
    return (
        [next(cycle) for _ in range(3)],
        list(itertools.chain.from_iterable([[x], (1, 2)])),
        list(itertools.takewhile(lambda v: v < 3, range(9))),
        list(itertools.dropwhile(lambda v: v < 7, range(9))),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        list(itertools.compress("abc", [1, 0, 1])),
    )


@programs()
def operator_getters_and_in_place(x):
    v = [3, 4]
    w = operator.iadd(v, [5])
    return (
        operator.itemgetter(0, -1)(v),
        operator.attrgetter("shape", "ndim")(x),
        operator.methodcaller("add", 1)(x),
        w is v,
        operator.mul(x, 2),
        operator.truth([]),
        operator.countOf([1, 1], 1),
        operator.index(3),
    )


@programs()
def math_of_numbers(x):
    return (
        x * math.sqrt(4),
        math.prod([2, 3]),
        math.gcd(12, 8),
        math.floor(-1.5),
        math.isclose(0.1 + 0.2, 0.3),
        math.comb(5, 2),
        math.hypot(3, 4),
        math.log2(8),
        math.fsum([0.1] * 10),
        math.tau,
        math.dist((0, 0), (3, 4)),
        math.trunc(2.7),
        math.isqrt(10),
    )


@programs()
def bisect_and_string_constants(x):
    v = [1, 3, 5]
    bisect.insort(v, 4)
    return x, v, bisect.bisect_left(v, 3), string.ascii_lowercase[:3]


@programs(breaks=True)
def text_is_wrapped_and_dedented(x):
    return x + 1, textwrap.dedent("  a\n  b"), textwrap.shorten("a long text", 6)


# -- copy, contextlib, inspect, typing, warnings ------------------------------------------------------------------------


class Tree:
    def __init__(self, value: Any, *children: Tree) -> None:
        self.value = value
        self.children = list(children)


@programs()
def deepcopy_of_nested_objects(x):
    leaf = Tree(1)
    tree = Tree([1, {}], leaf, leaf)
    other = copy.deepcopy(tree)
    shallow = copy.copy(tree)
    return x, other.children[0] is other.children[1], other.children[0] is leaf, shallow.children is tree.children


@programs(*two({"lr": [1, 2], "tree": Tree(3)}, {"lr": [1], "tree": Tree(4)}), breaks=True)
def deepcopy_of_an_argument(x, config):
    other = copy.deepcopy(config)
    other["lr"].append(9)
    return x + len(config["lr"]), other["lr"], other["tree"] is config["tree"], other["tree"].value


@programs(breaks=True)
def deepcopy_with_tensors_inside(x):
    state = {"x": x, "again": [x], "y": x + 1}
    other = copy.deepcopy(state)
    other["x"].add_(1)
    return state, other, other["x"] is other["again"][0]


class Copied:
    def __init__(self, value: int) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        print("copied")
        return Copied(self.value + 1)


@programs(breaks=True)
def deepcopy_with_a_break_inside(x):
    items = [Copied(1), Copied(2)]
    first, second = copy.deepcopy((items, items))
    return x * first[0].value, first is second, [item.value for item in first]


@contextlib.contextmanager
def counted(log: list[str]):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


@programs()
def contextmanager_used_as_a_decorator(x):
    log: list[str] = []

    @counted(log)
    def inner(v):
        log.append("run")
        return v * 2

    return inner(x), inner(x), log


@programs(breaks=True)
def exit_stack_with_callbacks(x):
    order = []
    with contextlib.ExitStack() as stack:
        stack.callback(order.append, "first")
        value = stack.enter_context(counted(order))
        stack.callback(lambda: order.append("last"))
    return x * value, order


@programs(breaks=True)
def exit_stack_swallows_and_keeps(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyError))
        stack.push(lambda *exc: log.append(exc[0] is KeyError))
        x = x + 1
        {}["missing"]
    return x, log


class Manager:
    def __init__(self, swallow: bool) -> None:
        self.swallow = swallow
        self.seen: Any = None

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        self.seen = (kind and kind.__name__, str(value), traceback is None)
        return self.swallow


@programs()
def managers_that_swallow_or_pass_on(x):
    with Manager(True) as first:
        raise ValueError("gone")
    try:
        with Manager(False) as second:
            raise KeyError("kept")
    except KeyError:
        x = x + 1
    return x, first.seen, second.seen


@programs()
def signature_of_functions_and_classes(x):
    def f(a, b: int = 2, *args, c, d=None, **kwargs):
        return a

    bound = inspect.signature(f).bind(1, 3, c=4)
    bound.apply_defaults()
    return (
        x,
        str(inspect.signature(f)),
        list(inspect.signature(f).parameters),
        bound.arguments,
        str(inspect.signature(Tree)),
    )


@programs()
def inspect_questions(x):
    return (
        x,
        inspect.isfunction(vector),
        inspect.isclass(Tree),
        inspect.ismethod(Tree(1).__init__),
        inspect.isgeneratorfunction(counted.__wrapped__),
        callable(Tree),
    )


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size: Any) -> None:
        self.size = size


@programs()
def fields_are_read_by_their_descriptors(x):
    namespace = type.__dict__["__dict__"].__get__(Tree)
    try:
        type.__dict__["__mro__"].__get__(3)
    except TypeError as error:
        message = str(error)
    return (
        Slotted.size.__get__(Slotted(x)) + 1,
        Slotted.size.__get__(None, Slotted) is Slotted.size,
        type.__dict__["__mro__"].__get__(Tree)[-1] is object,
        "__init__" in namespace,
        namespace["__init__"] is Tree.__init__,
        type(object.__dict__["__class__"]) is types.GetSetDescriptorType,
        sorted(object.__dict__)[0],
        message,
    )


@programs()
def attributes_are_looked_up_statically(x):
    tree = Tree(x)
    return (
        inspect.getattr_static(tree, "value") + 1,
        inspect.getattr_static(tree, "leaves", None),
        inspect.getattr_static(Tree, "__init__") is Tree.__init__,
        inspect.getattr_static(Slotted(1), "size") is Slotted.size,
    )


@programs()
def weak_references_to_classes(x):
    references = [weakref.ref(each) for each in Tree.__mro__]
    return x, [reference().__name__ for reference in references], references[0] is weakref.ref(Tree), references[0]


@programs()
def typing_constructs_at_run_time(x):
    return (
        x,
        typing.cast(int, "a"),
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        isinstance(1, int | str),
    )


@programs(breaks=True)
def type_variables_made_inside(x):
    return x + 1, typing.TypeVar("T").__name__


@programs(breaks=True)
def type_hints_that_are_texts(x):
    return x + 1, typing.get_type_hints(Typed)["scale"]


@programs(breaks=True)
def warnings_are_caught_and_filtered(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("look", stacklevel=1)
        y = x + 1
    return y, [str(w.message) for w in caught]


@programs(breaks=True)
def warning_as_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("stop", UserWarning, stacklevel=1)
        except UserWarning as error:
            return x * 2, str(error)


# -- classes ----------------------------------------------------------------------------------------------------------------


class Units(enum.Enum):
    METRE = 1.0
    FOOT = 0.3048

    def convert(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value

    @classmethod
    def default(cls) -> Units:
        return cls.METRE


@programs(*two(Units.METRE, Units.FOOT, Units.METRE))
def enum_with_methods(x, unit):
    return unit.convert(x), unit.name, unit is Units.default(), Units(1.0), Units["FOOT"], list(Units), unit in Units


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@programs(*two(Access.READ, Access.READ | Access.WRITE))
def flags_are_combined(x, access):
    return x * access, bool(access & Access.WRITE), access | Access.WRITE, ~Access.READ, Access.READ in access


@dataclasses.dataclass(order=True)
class Ranked:
    rank: int
    name: str = dataclasses.field(compare=False, default="")
    parts: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self.rank += 1


@programs()
def dataclass_ordering_and_replacement(x):
    a, b = Ranked(2, "a"), Ranked(1, "b", [x])
    c = dataclasses.replace(b, name="c")
    return (
        a > b,
        sorted([a, b])[0] is b,
        c.rank,
        c.parts is b.parts,
        a == Ranked(2, "z"),
        [f.name for f in dataclasses.fields(a)],
    )


@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 3
    scale: float = 2.0

    @functools.cached_property
    def area(self) -> int:
        return self.size * self.size


@programs(*two(Config(), Config(4), Config()))
def frozen_dataclass_from_outside(x, config):
    try:
        config.size = 5
    except dataclasses.FrozenInstanceError as error:
        return x * config.scale, config.area, config == Config(), hash(config) == hash(Config(config.size)), str(error)


class Polynomial:
    def __init__(self, *coefficients: float) -> None:
        self.coefficients = coefficients

    def __call__(self, x: Any) -> Any:
        return sum(c * x**i for i, c in enumerate(self.coefficients))

    def __add__(self, other: Polynomial) -> Polynomial:
        pairs = itertools.zip_longest(self.coefficients, other.coefficients, fillvalue=0)
        return Polynomial(*(a + b for a, b in pairs))

    def __mul__(self, factor: float) -> Polynomial:
        return Polynomial(*(c * factor for c in self.coefficients))

    __rmul__ = __mul__

    def __neg__(self) -> Polynomial:
        return self * -1

    def __getitem__(self, index: int) -> float:
        return self.coefficients[index]

    def __len__(self) -> int:
        return len(self.coefficients)

    def __matmul__(self, other: Polynomial) -> Polynomial:
        return Polynomial(*(other.coefficients))

    def __divmod__(self, other: int) -> tuple[int, int]:
        return len(self) // other, len(self) % other

    def __contains__(self, value: float) -> bool:
        return value in self.coefficients

    def __reversed__(self) -> Any:
        return iter(self.coefficients[::-1])

    def __index__(self) -> int:
        return len(self)


@programs.made(lambda: (vector(),), lambda: (vector(),))
def class_with_many_operators():
    p = Polynomial(1, 2)

    def program(x):
        q = 2 * p + -p + Polynomial(0, 0, 3)
        return (
            q(x),
            (p @ q).coefficients,
            divmod(q, 2),
            3 in q,
            list(reversed(q)),
            [10, 20, 30, 40][q],
            p[1:],
            len(q),
            [*q],
        )

    return program


class Meta(type):
    registry: list[str] = []

    def __call__(cls, *args: Any) -> Any:
        instance = super().__call__(*args)
        instance.made_by = cls.__name__
        return instance

    def __getattr__(cls, name: str) -> str:
        return "class:" + name

    def __len__(cls) -> int:
        return 7

    def __contains__(cls, item: Any) -> bool:
        return item == 1


class Made(metaclass=Meta):
    def __init__(self, value: Any) -> None:
        self.value = value


@programs()
def metaclass_with_methods_of_its_own(x):
    made = Made(x)
    return (
        made.value * len(Made),
        made.made_by,
        Made.anything,
        1 in Made,
        isinstance(made, Made),
        type(type(made)).__name__,
    )


class Validated:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance, self.name, 0)

    def __set__(self, instance: Any, value: float) -> None:
        if value < 0:
            raise ValueError(f"{self.name} must not be negative")
        setattr(instance, self.name, value)

    def __delete__(self, instance: Any) -> None:
        delattr(instance, self.name)


class Sized:
    width = Validated()
    height = Validated()


@programs.made(lambda: (vector(), 2), lambda: (vector(), -1), lambda: (vector(), 3))
def descriptors_that_validate():
    sized = Sized()

    def program(x, width):
        try:
            sized.width = width
        except ValueError as error:
            return x, str(error)
        y = x * sized.width + sized.height
        del sized.width
        return y, sized.width, isinstance(Sized.width, Validated)

    program.watched = (sized,)
    return program


class Lazy:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = len(name)
        self.__dict__[name] = value
        return value


@programs.made(*[lambda: (vector(),)] * 3)
def attributes_made_when_they_are_first_read():
    lazy = Lazy()

    def program(x):
        return x * lazy.alpha, lazy.beta, hasattr(lazy, "_none"), sorted(vars(lazy))

    program.watched = (lazy,)
    return program


class Base:
    def __init_subclass__(cls, /, tag: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tag = tag

    def steps(self) -> list[str]:
        return ["base"]


class Left(Base, tag="left"):
    def steps(self) -> list[str]:
        return ["left", *super().steps()]


class Right(Base, tag="right"):
    def steps(self) -> list[str]:
        return ["right", *super().steps()]


class Both(Left, Right, tag="both"):
    def steps(self) -> list[str]:
        return ["both", *super().steps()]


@programs()
def cooperative_inheritance(x):
    both = Both()
    return (
        x,
        both.steps(),
        Both.tag,
        [c.__name__ for c in Both.__mro__],
        isinstance(both, Right),
        issubclass(Both, Base),
        super(Left, both).steps(),
    )


@programs()
def methods_made_and_bound_by_hand(x):
    class Holder:
        pass

    holder = Holder()
    holder.scale = 3
    method = types.MethodType(lambda self, v: v * self.scale, holder)
    holder.method = method
    Holder.plain = lambda self, v: v + self.scale
    return method(x), holder.method(x), holder.plain(x), method.__self__ is holder, Holder.plain(holder, x)


@programs(*two(types.SimpleNamespace(a=1, b=[2]), types.SimpleNamespace(a=2, b=[]), types.SimpleNamespace(a=1, b=[2])))
def namespace_from_outside(x, space):
    space.c = x * space.a
    space.b.append(1)
    return space.c, len(space.b), getattr(space, "d", None), sorted(vars(space))


class Comparable:
    def __init__(self, key: int) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comparable) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Comparable) -> bool:
        return self.key < other.key


@programs()
def equal_instances_in_containers(x):
    a, b, c = Comparable(1), Comparable(1), Comparable(0)
    return (
        x,
        a == b,
        a in [c, b],
        [c, a].index(b),
        sorted([a, c])[0] is c,
        max(a, c) is a,
        [a, c].count(b),
        a != c,
        (a, 1) == (b, 1),
    )


class Formatted:
    def __format__(self, spec: str) -> str:
        return f"<{spec}>"

    def __str__(self) -> str:
        return "text"

    def __repr__(self) -> str:
        return "repr"

    def __bool__(self) -> bool:
        return False


@programs()
def objects_with_texts_of_their_own(x):
    f = Formatted()
    return x, f"{f:abc} {f!s} {f!r}", str(f), repr([f]), f"{f}", f or 3, not f, "%s %r" % (f, f)


@programs()
def exceptions_with_a_hierarchy_and_chain(x):
    class Wrong(RuntimeError):
        def __init__(self, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    try:
        try:
            {}["k"]
        except KeyError as error:
            raise Wrong(3) from error
    except RuntimeError as error:
        return x * error.code, str(error), type(error.__cause__).__name__, error.args, error.__suppress_context__


@programs()
def loop_with_else_and_try_finally(x):
    order = []
    for i in range(5):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            order.append(i)
        finally:
            order.append(-i)
    else:
        order.append("else")
    return x, order


@programs()
def nested_functions_share_and_shadow(x):
    scale = 2

    def outer():
        scale = 3

        def inner():
            nonlocal scale
            scale += 1
            return scale

        return inner() + inner(), scale

    return x * scale, outer(), [f() for f in [lambda i=i: i * scale for i in range(3)]]


@programs()
def generators_with_state_and_delegation(x):
    def leaf(n):
        received = yield n
        return received or 0

    def tree():
        total = 0
        for n in (1, 2):
            total += yield from leaf(n)
        return total

    g = tree()
    seen = [next(g), g.send(10)]
    try:
        g.send(20)
    except StopIteration as stop:
        seen.append(stop.value)
    return x, seen


@programs(*two([1, [2, 3], {"k": 4}], {"type": "circle", "r": 2}, ("a", "b", "c"), Point(1, 2), 7, None))
def structural_patterns(x, value):
    match value:
        case [int(first), [*rest], {"k": k}]:
            return x * first, rest, k
        case {"type": "circle", "r": r, **others}:
            return x * r, others
        case Point(x=px, y=py) if px < py:
            return x + px, py
        case ("a" | "z", *_, last):
            return x, last
        case int() | float() as number:
            return x * number
        case _:
            return x, "nothing"


# -- how instances are made anew ------------------------------------------------------------------------------------------


class SaysHow:
    def __init__(self, k: int) -> None:
        self.k = k

    def __reduce__(self) -> Any:
        return SaysHow, (self.k + 1,)


class SaysWhat:
    def __init__(self) -> None:
        self.x, self.cache = 1, {}

    def __getstate__(self) -> Any:
        return {"x": self.x}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, cache={"new": 1})


class PartlySlotted:
    __slots__ = ("a", "b", "__dict__")

    def __init__(self) -> None:
        self.a, self.more = 1, [1, 2]


class Counted(list[int]):
    n = 0


@programs.made()
def instances_that_say_how_they_are_copied():
    how, what, slotted, counted = SaysHow(3), SaysWhat(), PartlySlotted(), Counted([1, 2])
    slotted.child, counted.n = slotted, 5

    def program(x):
        a, b, c, d = copy.copy(how), copy.deepcopy(what), copy.deepcopy(slotted), copy.deepcopy(counted)
        c.more.append(3)
        shallow = copy.copy(slotted)
        return x * a.k, b.cache, c.more, c.child is c, shallow.more is slotted.more, hasattr(c, "b"), d, d.n

    return program


@programs()
def method_caller_with_keywords_and_tee(x):
    clamp = operator.methodcaller("clamp", min=2.0, max=4)
    a, b = itertools.tee([x, x + 1, x + 2])
    next(b)
    return clamp(x), sum(p * q for p, q in zip(a, b)), operator.methodcaller("reshape", 2, 3)(x), list(b), next(a, None)


@programs()
def tee_that_is_handed_on(x):
    a, b = itertools.tee(iter([1, 2, 3]))
    return x + next(a), list(a), [next(b), next(b)]


BY_SHAPE: dict[Any, int] = {(6,): 5, torch.Size([2, 3]): 3, torch.Size([2]): 7}


@programs(lambda: (vector(),), lambda: (vector().view(2, 3),), lambda: (vector().view(3, 2),))
def sizes_as_keys_of_a_dict_from_outside(x):
    return x * BY_SHAPE.get(x.shape, 2), x.shape in BY_SHAPE, BY_SHAPE.get(tuple(x.shape))


@programs.made()
def a_dict_by_sizes_that_changes():
    seen: dict[Any, int] = {}
    turns = iter(range(4))

    def program(x):
        known = seen.get(x.shape, 0)
        return x + known

    def outer(x):
        turn = next(turns)
        if turn > 0:
            seen[x.shape if turn == 1 else (6,)] = turn
        return program(x)

    outer.watched = [seen]  # type: ignore[attr-defined]
    return outer


@programs()
def eval_of_an_expression(x):
    k = 3
    return eval("x * k + 1"), eval("[torch.sin(x), k, len(BY_SHAPE)]"), eval("(lambda v: v + 2)(k)")


@programs.made()
def eval_with_variables_of_the_function_around():
    scale = 2

    def program(x):
        def inner():
            return scale

        return eval("x * scale") + inner(), eval("max([v for v in (1, 4, 2)])")

    return program


@programs(breaks=True)
def eval_with_a_namespace(x):
    return eval("x * k", {"x": x, "k": 4})


@programs()
def eval_that_raises(x):
    try:
        eval("x * missing_name")
    except NameError as error:
        first = str(error)
    try:
        eval("x *")
    except SyntaxError as error:
        return x, first, error.lineno
    return x


# -- a random.Random made inside; exceptions that are handled ---------------------------------------------------------------


@programs()
def random_numbers_of_ones_own(x):
    draws = random.Random(3)
    order = list(range(12))
    draws.shuffle(order)
    some = draws.sample(range(100), 3), draws.choice("abc"), draws.choices([1, 2, 3], k=4), draws.randint(0, 5)
    return x * draws.random() + draws.gauss(0, 1), order, some, draws.uniform(1, 2), draws.getrandbits(40)


@programs()
def a_random_generator_is_handed_on(x):
    draws = random.Random(7)
    before = draws.random()
    again = random.Random(7)
    return x * before, again.random() == before, [draws.random() for _ in range(2)], again.getstate() == 1


@programs(breaks=True)
def a_random_generator_behind_an_exit(x):
    draws = random.Random(11)
    before = draws.gauss(0, 1)
    torch._dynamo.graph_break()
    return x * before, draws.gauss(0, 1), draws.randrange(10), [draws.random()]


@programs.made()
def random_generators_left_outside():
    kept = []

    def program(x):
        draws = random.Random(len(kept))
        first = draws.random()
        kept.append(draws)
        return x * first, [each.random() for each in kept[:-1]]

    return program


@programs(breaks=True)
def a_random_generator_of_a_clock(x):
    draws = random.Random()
    return x, 0 <= draws.random() < 1


@programs()
def what_is_handled_is_asked_for(x):
    seen = []
    try:
        raise ValueError("a")
    except ValueError as error:
        kind, value, _ = sys.exc_info()
        seen.append((kind is ValueError, value is error))
        try:
            raise KeyError("b")
        except KeyError:
            seen.append(sys.exc_info()[0] is KeyError)
        seen.append(sys.exc_info()[1] is error)
    seen.append(sys.exc_info())
    return x, seen


@programs()
def an_exit_stack_that_an_exception_leaves(x):
    seen = []
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(seen.append, 1)
            stack.push(lambda *error: seen.append(error[0].__name__))
            raise ValueError("a")
    except ValueError:
        x = x + 1
    return x, seen


@programs()
def an_exit_stack_beside_what_is_handled(x):
    seen = []
    try:
        raise KeyError("q")
    except KeyError as outer:
        with contextlib.ExitStack() as stack:
            stack.callback(seen.append, 1)
            stack.enter_context(contextlib.suppress(ValueError))
            raise ValueError("gone")
        try:
            with contextlib.ExitStack() as stack:

                def fail():
                    raise TypeError("later")

                stack.callback(fail)
                raise ValueError("first")
        except TypeError as error:
            seen.append((str(error), str(error.__context__), error.__context__.__context__ is outer))
    return x, seen
