"""Built-in types and the standard library's: list, tuple, dict, set, text, collections, functools, itertools and others."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import math
import operator
import typing
import warnings
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()


def two(*values: Any) -> Any:
    return tuple((lambda value=value: (vector(), value)) for value in values)


# -- list -----------------------------------------------------------------------------------------------------------------


@programs()
def list_methods(x):
    v = [3, 1, 2]
    v.append(x)
    v.extend((4, 5))
    v.insert(0, "a")
    v.remove(1)
    p = v.pop()
    q = v.pop(0)
    v.reverse()
    return v, p, q, v[2:].index(3), v[2:].count(2), v.copy(), 3 in v[2:]


@programs()
def list_operators(x):
    v = [1, 2]
    w = v
    w += [3]
    v = v + [4]
    u = [x] * 2
    return v, w, u, u[0] is u[1], [1, 2] < [1, 3], [1] == [1], [1] != [2], not []


@programs()
def list_sort_kinds(x):
    v = [(2, "b"), (1, "z"), (2, "a")]
    w = sorted(v)
    v.sort(key=lambda p: (-p[0], p[1]))
    return v, w, sorted("bca", reverse=True), sorted({3: 1, 1: 2}), x


@programs()
def list_delete_and_slices(x):
    v = list(range(8))
    del v[0], v[-1]
    v[1:3] = []
    v[:0] = [x]
    v[len(v) :] = [9]
    return v, v[-1], v[::-2]


@programs(*[(lambda: (vector(), [3, 1, 2])), (lambda: (vector(), [1, 2, 3]))] * 2)
def list_from_outside_changed(x, v):
    v.append(len(v))
    v[0] += 1
    v.sort()
    v *= 2
    v.insert(1, x + 1)
    return v[2], v.pop(), len(v)


@programs(lambda: (vector(), [[1], [2]]), lambda: (vector(), [[1], [2]]))
def list_nested_from_outside_changed(x, v):
    v[0].append(x)
    inner = v[1]
    inner.clear()
    v.append(inner)
    return v, inner is v[2]


@programs()
def list_aliasing(x):
    a = [x]
    b = a
    c = list(a)
    b.append(1)
    return a, b, c, a is b, a == c


@programs()
def list_comparison_with_tensors_by_identity(x):
    return [x] == [x], x in [x, 1], [x, 1].index(x), [x] * 2 == [x, x]


@programs()
def list_contains_itself(x):
    a = [x]
    a.append(a)
    return a


# -- tuple ----------------------------------------------------------------------------------------------------------------


@programs()
def tuple_operations(x):
    t = (1, x, 2)
    return (
        t + (3,),
        t * 2,
        t[1:],
        (1, 2, 1).count(1),
        (1, 2).index(2),
        (1, 2) < (1, 3),
        hash((1, 2)) == hash((1, 2)),
        len(t),
        (),
    )


@programs(lambda: ((vector(), (1, vector(2))),), lambda: ((vector(), (2, vector(2))),))
def tuple_from_outside(t):
    x, (n, y) = t
    return x * n + y, t, t[1]


# -- dict -----------------------------------------------------------------------------------------------------------------


@programs()
def dict_methods(x):
    d = {"a": 1, "b": x}
    d.update({"c": 2}, e=5)
    d.setdefault("l", []).append(3)
    p = d.pop("a")
    q = d.pop("zz", None)
    last = d.popitem()
    return d, p, q, last, d.get("b"), d.get("n", 0), d.copy(), list(d), "b" in d, len(d), d | {"r": 1}


@programs()
def dict_views(x):
    d = {"a": 1, "b": 2}
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return list(keys), list(values), list(items), keys & {"a", "q"}, keys | {"z"}, ("a", 1) in items, len(values), x


@programs()
def dict_views_reversed_and_compared(x):
    d = {"a": 1, "b": 2}
    return list(reversed(d)), list(reversed(d.items())), d.keys() == {"b", "a"}, d == {"b": 2, "a": 1}, x


@programs()
def iterators_stepped_by_their_method(x):
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    steps = [iter(ordered), reversed(ordered), reversed(ordered.values()), iter(ordered.items())]
    steps += [reversed([1, 2, 3]), iter((4, 5, 6)), iter(range(7, 10)), iter({"p": 1, "q": 2})]
    later = [step.__next__ for step in steps]
    first = [step.__next__() for step in steps]
    second = [call() for call in later]
    return x * second[2], first, second, [list(step) for step in steps]


@programs()
def dict_iteration_with_change_raises(x):
    d = {"a": 1}
    try:
        for k in d:
            d[k + "x"] = 1
    except RuntimeError as error:
        return str(error), x


@programs()
def dict_kinds_of_keys(x):
    d = {1: "int", (1, 2): "tuple", None: "none", True: "bool", 2.5: x, frozenset([1]): "fs", torch.float32: "dtype"}
    return d, d[1], d[(1, 2)], d[2.5], d[frozenset([1])], d[torch.float32]


@programs()
def dict_from_pairs_and_fromkeys(x):
    return dict([("a", x)], b=2), dict(zip("ab", (1, 2))), dict.fromkeys("ab", 0), dict({"q": x})


@programs(lambda: (vector(), {"a": 1, "b": vector()}), lambda: (vector(), {"a": 1, "b": vector()}))
def dict_from_outside_changed(x, d):
    d["c"] = x + 1
    del d["a"]
    d["b"] += 1
    for k in list(d):
        d[k + k] = len(d)
    return d, list(d.items())[0]


class Key:
    def __init__(self, n):
        self.n = n


class EqualKey:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, EqualKey) and self.n == other.n

    def __hash__(self):
        return hash(self.n)


@programs()
def dict_keys_that_are_fresh_instances(x):
    a, b = Key(1), EqualKey(2)
    d = {a: x, b: x + 1}
    return d[a], d[EqualKey(2)], EqualKey(3) in d, a in d


@programs.made()
def dict_keys_that_are_outside_instances():
    keys = [Key(1), Key(2)]
    table = {k: i for i, k in enumerate(keys)}

    def program(x):
        return x + table[keys[1]], keys[0] in table, len(table)

    return program


@programs.made()
def dict_keyed_by_outside_instance_is_written():
    key = Key(1)
    table: dict = {}

    def program(x):
        table[key] = table.get(key, 0) + 1
        return x + table[key]

    program.watched = (table,)
    return program


@programs.made()
def dict_keyed_by_tensor():
    p = vector(3)
    state = {p: {"step": 0}}

    def program(x):
        state[p]["step"] += 1
        return x * state[p]["step"] + p

    program.watched = (p, state)
    return program


@programs.made(breaks=True)
def dict_keyed_by_equal_instances():
    table = {EqualKey(1): "one"}

    def program(x):
        return x, table[EqualKey(1)], EqualKey(2) in table

    return program


@programs()
def dict_subclass(x):
    class D(dict):
        def __missing__(self, key):
            self[key] = x * len(key)
            return self[key]

        def __getitem__(self, key):
            return super().__getitem__(key)

    d = D(a=1)
    return d["a"], d["bb"], len(d), type(d).__name__


# -- set ------------------------------------------------------------------------------------------------------------------


@programs()
def set_operations(x):
    a = {1, 2, 3}
    b = {2, 3, 4}
    c = set(a)
    c.add(9)
    c.discard(1)
    c.update([5])
    c.remove(9)
    a2 = a.copy()
    a2 &= b
    return a | b, a & b, a - b, a ^ b, a <= b, a < (a | b), a.isdisjoint({7}), c, a2, 2 in a, len(a), x


@programs()
def frozenset_operations(x):
    f = frozenset([1, 2])
    return f | {3}, f & {1}, hash(f) == hash(frozenset([2, 1])), {f: 1}[frozenset([2, 1])], f == {1, 2}, x


@programs(lambda: (vector(), {1, 2}), lambda: (vector(), {1, 2}), lambda: (vector(), {3}))
def set_from_outside_changed(x, s):
    if 1 in s:
        s.add(x.dim() + 10)
    s |= {100}
    return x * len(s), sorted(s)


@programs()
def set_of_instances_and_tensors(x):
    a, b = Key(1), EqualKey(2)
    s = {a, b, EqualKey(2)}
    t = {x}
    return len(s), a in s, x in t, len(t)


@programs.made(breaks=True)
def set_of_outside_instances():
    a, b = Key(1), Key(2)
    chosen = {a}

    def program(x):
        return x + 1 if a in chosen else x, b in chosen

    return program


# -- numbers, range, slice --------------------------------------------------------------------------------------------------


@programs()
def integer_operations(x):
    n = 10
    return (
        divmod(n, 3), n // -3, n % -3, -n, ~n, +n, n**2, n**-1, pow(n, 3, 7), n.bit_length(), abs(-n), int("12"),
        int(3.9), int("ff", 16), bin(5), hex(255), oct(8), round(2.5), round(3.14159, 2), n.__add__(1), 7 & 3 | 8 ^ 1,
        int.from_bytes(b"\x01\x02", "big"), (5).to_bytes(2, "little"), True + 1, x,
    )  # fmt: skip


@programs()
def float_and_complex_operations(x):
    f = 2.5
    c = 1 + 2j
    return (
        f.is_integer(), f.as_integer_ratio(), f.hex(), float("inf") > 1e308, math.isnan(float("nan")), c.real, c.conjugate(),
        abs(3 + 4j), c * 2, f // 2, f % 2, min(1, 2.5), max([1, 3, 2]), sum([1, 2.5], 1), x * f,
    )  # fmt: skip


@programs()
def range_operations(x):
    r = range(2, 20, 3)
    return (
        list(r),
        r[1],
        r[-1],
        r[1:3],
        len(r),
        5 in r,
        r.index(8),
        r.start,
        r.step,
        list(reversed(r)),
        r == range(2, 20, 3),
        x,
    )


@programs()
def slice_objects(x):
    s = slice(1, 5, 2)
    return s.indices(4), s.start, x[s], [0, 1, 2, 3, 4, 5][s], slice(None) == slice(None, None)


@programs()
def math_functions(x):
    return (
        math.sqrt(2), math.floor(2.7), math.ceil(2.1), math.gcd(12, 18), math.prod([1, 2, 3]), math.comb(5, 2), math.log2(8),
        math.hypot(3, 4), math.isclose(0.1 + 0.2, 0.3), math.inf, math.fsum([0.1] * 3), math.trunc(-2.5), math.pi * x,
        math.factorial(5), math.copysign(1, -0.0), math.fmod(7, 3), math.isqrt(17),
    )  # fmt: skip


# -- builtin functions ----------------------------------------------------------------------------------------------------


@programs()
def any_all_over_things(x):
    return (
        any([]),
        all([]),
        any([0, "a"]),
        all([1, x.dim()]),
        any(i > 2 for i in range(5)),
        all(i < 2 for i in range(5)),
        x,
    )


@programs()
def zip_enumerate_map_filter(x):
    return (
        list(zip([1, 2], "ab", strict=True)), list(zip([1, 2, 3], "ab")), list(enumerate("ab", 5)),
        list(map(lambda a, b: a * b, [x, x], [1, 2])), list(filter(None, [0, 1, "", "a"])),
        dict(zip("ab", map(str, [1, 2]))), list(map(abs, [-1, 1])), [*map(torch.neg, [x])],
    )  # fmt: skip


@programs()
def zip_strict_raises(x):
    try:
        return list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return str(error), x


@programs()
def iter_with_sentinel_and_next_default(x):
    v = [1, 2, 0, 3]
    it = iter(v)
    return list(iter(lambda: next(it), 0)), next(it), next(it, "end"), x


@programs()
def iterator_shared_by_two_loops(x):
    it = iter(range(6))
    a = [i for i, _ in zip(it, range(2))]
    return a, list(it), x


@programs()
def min_max_with_key(x):
    return (
        min("bca"),
        max([1, -3], key=abs),
        min([], default=7),
        max(1, 2, 3),
        min({"a": 2, "b": 1}.items(), key=lambda p: p[1]),
        x,
    )


@programs()
def isinstance_kinds(x):
    return (
        isinstance(x, torch.Tensor), isinstance(3, (int, str)), isinstance(3, int | str), issubclass(bool, int),
        isinstance([], collections.abc.Sequence), isinstance({}, typing.Mapping), isinstance(None, type(None)),
        callable(len), type(3) is int, type(x) is torch.Tensor,
    )  # fmt: skip


@programs()
def getattr_setattr_hasattr_vars(x):
    class A:
        pass

    a = A()
    setattr(a, "v", x)
    a.w = 1
    out = getattr(a, "v"), getattr(a, "nope", 3), hasattr(a, "w"), vars(a), dict(a.__dict__)
    delattr(a, "w")
    return out, hasattr(a, "w")


@programs()
def id_is_and_hash(x):
    a = [x]
    b = a
    return id(a) == id(b), a is b, a is [x], hash("a") == hash("a"), id(x) == id(x), x is x


@programs()
def round_pow_divmod(x):
    return round(1.5), round(-2.5), round(123, -1), pow(2, 10), pow(2, -1), divmod(-7, 2), divmod(7.5, 2), x


@programs()
def reversed_and_sorted_objects(x):
    class R:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i >= 3:
                raise IndexError
            return i * 10

    return list(reversed(R())), sorted(R(), reverse=True), list(reversed("ab")), x


@programs(breaks=True)
def eval_and_exec(x):
    space = {"x": x}
    exec("y = x + 1", space)
    return eval("y * 2", space), x


# -- collections ------------------------------------------------------------------------------------------------------------


@programs()
def deque_operations(x):
    d = collections.deque([1, 2, 3], maxlen=4)
    d.append(x)
    d.appendleft(0)
    d.rotate(1)
    d.extend([7])
    a = d.popleft()
    b = d.pop()
    return d, a, b, len(d), d.maxlen, list(reversed(d)), d[0], 3 in d


@programs(
    lambda: (vector(), collections.deque([vector(2)], maxlen=3)),
    lambda: (vector(), collections.deque([vector(2)], maxlen=3)),
    breaks=True,
)
def deque_from_outside(x, d):
    d.append(x + 1)
    return sum(d), len(d), d[0]


@programs()
def ordered_dict_operations(x):
    d = collections.OrderedDict(a=1, b=x)
    d["c"] = 3
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    first = d.popitem(last=False)
    return list(d), first, d == {"b": x, "a": 1}, list(reversed(d))


@programs()
def defaultdict_operations(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["b"]
    e = collections.defaultdict(lambda: 5, k=1)
    return d, e["k"], e["z"], len(e), d.get("none"), "q" in d


@programs(lambda: (vector(), collections.defaultdict(int, a=1)), lambda: (vector(), collections.defaultdict(int, a=1)))
def defaultdict_from_outside(x, d):
    d["a"] += 1
    d["n"] += 5
    return x * d["a"], d["n"]


@programs()
def counter_operations(x):
    c = collections.Counter("banana")
    c.update("aa")
    c["z"] += 1
    d = collections.Counter(a=1, b=2)
    return (
        c["a"],
        c["q"],
        c.most_common(1),
        sorted(c.elements())[:3],
        c.total(),
        (c + d)["a"],
        (c - d)["b"],
        x * c["n"],
        dict(c),
    )


@programs(lambda: (vector(), collections.Counter("aab")), lambda: (vector(), collections.Counter("aab")))
def counter_from_outside(x, c):
    c["a"] += 1
    return x * c["a"], c["zz"], sorted(c)


Pair = collections.namedtuple("Pair", "a b", defaults=(7,))


class Typed(typing.NamedTuple):
    v: Any
    n: int = 3

    def scaled(self):
        return self.v * self.n


@programs()
def namedtuple_operations(x):
    p = Pair(x)
    t = Typed(x, n=2)
    q = p._replace(b=1)
    a, b = t
    return (
        p,
        q.b,
        p[1],
        p._fields,
        p._asdict(),
        t.scaled(),
        a is x,
        b,
        Pair._make([1, 2]),
        p == (x, 7),
        len(p),
        Typed(x).n,
    )


@programs(lambda: (Pair(vector(), 2),), lambda: (Pair(vector(), 2),), lambda: (Pair(vector(), 3),))
def namedtuple_from_outside(p):
    return p.a * p.b, p._replace(a=1), isinstance(p, tuple), p


@programs()
def namedtuple_made_inside(x):
    P = collections.namedtuple("P", ["u", "v"])
    p = P(x, 1)
    return p.u + p.v, P.__name__, P._fields, P.__module__, isinstance(p, P), repr(P(1, 2))


@programs()
def namedtuple_made_inside_and_given(x):
    P = collections.namedtuple("P", "u v", defaults=(2,))
    p = P(x.sin())
    return p, p._replace(v=x + 1), p._asdict(), type(p) is P, p[1] == p.v


@programs()
def namedtuples_made_in_a_loop(x):
    made = [collections.namedtuple("P", ["u"])(x + i) for i in range(3)]
    return made, len({type(one) for one in made})


@programs()
def namedtuple_with_wrong_names(x):
    P = collections.namedtuple("P", "a class a", rename=True)
    try:
        collections.namedtuple("P", "1a")
    except ValueError as error:
        return str(error), P(x, x + 1, 2), P._fields


@programs(lambda: (vector(), ["a", "b"]), lambda: (vector(), ["a", "b"]), lambda: (vector(), ["b", "c", "d"]))
def namedtuple_of_names_given(x, names):
    return collections.namedtuple("P", names)(*(x + i for i in range(len(names))))


class GivesNamedTuple(torch.nn.Module):
    last = None

    def forward(self, x):
        self.last = collections.namedtuple("Outputs", "relu tanh")(x.relu(), x.tanh())
        return self.last


@programs(lambda: (GivesNamedTuple(), vector()))
def namedtuple_kept_and_given(module, x):
    y = module(x)
    return y.relu + y.tanh, y is module.last


BY_WRAPPER = {torch.Tensor.grad.__get__: 2, torch.Tensor.requires_grad.__get__: 3}


@programs()
def dict_of_method_wrappers(x):
    return x * BY_WRAPPER[torch.Tensor.grad.__get__] + BY_WRAPPER.get(torch.Tensor.shape.__get__, 7)


@programs(breaks=True)
def namedtuple_across_an_exit(x):
    P = collections.namedtuple("P", "u v")
    p = P(x + 1, 2)
    print(end="")
    return p.u * p.v, type(p) is P, P


@programs(breaks=True)
def namedtuple_with_a_tensor_as_default(x):
    return collections.namedtuple("P", "u v", defaults=(x,))(x + 1)


@programs()
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": x})
    m["c"] = 3
    return m["a"], m["b"], sorted(m), m.maps[0], "z" in m


@programs()
def user_dict_and_list(x):
    d = collections.UserDict(a=x)
    v = collections.UserList([1, 2])
    v.append(x)
    return d["a"], len(v), v[2], list(d)


# -- dataclasses, enums -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    x: Any
    n: int = 2
    extra: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.m = self.n * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int
    m: int = dataclasses.field(default=1, compare=False)


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: int = 0


@dataclasses.dataclass
class Derived(Config):
    z: Any = None
    k: dataclasses.InitVar[int] = 4

    def __post_init__(self, k):
        super().__post_init__()
        self.k2 = k


@programs()
def dataclass_operations(x):
    c = Config(x)
    c.extra.append(1)
    d = dataclasses.replace(c, n=5)
    return (
        c,
        d.m,
        c.m,
        Config(x).extra,
        [f.name for f in dataclasses.fields(c)],
        dataclasses.is_dataclass(c),
        Derived(x, z=1).k2,
    )


@programs(breaks=True)
def dataclass_frozen(x):
    f = Frozen(1)
    try:
        f.n = 2
    except dataclasses.FrozenInstanceError as error:
        return str(error), f < Frozen(2), f == Frozen(1, 5), hash(f) == hash(Frozen(1)), {f: x}[Frozen(1)], repr(f)


@programs()
def dataclass_slots(x):
    s = Slotted(x)
    s.b += 3
    try:
        s.c = 1
    except AttributeError as error:
        return str(error), s.a * s.b, s


@programs()
def dataclass_asdict_astuple(x):
    s = Slotted([1, (2, 3)], 4)
    return dataclasses.asdict(s), dataclasses.astuple(s), x


@programs(lambda: (Config(vector(), 3),), lambda: (Config(vector(), 3),), lambda: (Config(vector(), 4),))
def dataclass_from_outside(c):
    c.n += 1
    c.extra.append(c.x * c.n)
    return c.x * c.m, c


@programs()
def dataclass_made_inside(x):
    @dataclasses.dataclass
    class D:
        v: Any
        k: int = 1

    return D(x).v + D(1, 2).k, D(1) == D(1)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def short(self):
        return self.name[0]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2
    C = 4


@programs(*two(Color.RED, Color.BLUE))
def enum_operations(x, c):
    if c is Color.RED:
        x = x + c.value
    return (
        x,
        c.name,
        c.short,
        Color("b") is Color.BLUE,
        Color["RED"] == Color.RED,
        [k.name for k in Color],
        {Color.RED: 1}[Color.RED],
    )


@programs()
def enum_int_and_flags(x):
    f = Flags.A | Flags.C
    return (
        x * Level.HIGH,
        Level.LOW < 2,
        Level(2).name,
        Flags.A in f,
        Flags.B in f,
        (f & Flags.C).name,
        (f ^ Flags.A) == Flags.C,
    )


@programs()
def enum_bad_value(x):
    try:
        Color(99)
    except ValueError as error:
        return str(error), x


# -- functools ----------------------------------------------------------------------------------------------------------------


@programs()
def partial_operations(x):
    p = functools.partial(lambda a, b, c=0: a * b + c, x, c=1)
    q = functools.partial(p, 2)
    return p(3), q(), q(c=5), p.args == (x,), p.keywords, functools.partial(torch.add, alpha=2)(x, x)


@programs()
def partialmethod(x):
    class A:
        def scale(self, v, k):
            return v * k

        double = functools.partialmethod(scale, k=2)

    return A().double(x)


@programs()
def reduce_with_tensors(x):
    return (
        functools.reduce(lambda a, b: a * b, [x, 2, 3]),
        functools.reduce(operator.add, [[1], [2]], []),
        functools.reduce(max, [1, 3, 2]),
    )


@functools.lru_cache(maxsize=2)
def cached_square(n):
    return n * n


@functools.cache
def cached_text(n):
    return f"n{n}"


@programs(*two(2, 3, 2))
def lru_cache_of_numbers(x, n):
    return x * cached_square(n), cached_text(n)


@programs.made(breaks=True)
def lru_cache_of_tensors():
    @functools.lru_cache
    def expensive(t):
        return t * 2

    def program(x):
        return expensive(x) + 1, expensive(x) + 2

    return program


@programs.made(breaks=True)
def lru_cache_with_side_effect():
    calls = []

    @functools.lru_cache
    def noted(n):
        calls.append(n)
        return n + 1

    def program(x):
        return x * noted(3) * noted(3), len(calls)

    program.watched = (calls,)
    return program


@programs.made(breaks=True)
def lru_cache_keeps_what_it_made():
    @functools.lru_cache
    def table(n):
        return torch.arange(n, dtype=torch.float32)

    return lambda x: x + table(6)


@programs.made()
def lru_cache_gives_the_object_that_it_keeps():
    class Recipe:
        def __init__(self, pattern, axes):
            self.sizes = [len(pattern), *axes]

    @functools.lru_cache(16)
    def prepare(pattern, *, axes=(), shape=()):
        return Recipe(pattern, [*axes, *shape])

    @functools.lru_cache(None)
    def sizes_of(recipe, factor):
        return [size * factor for size in recipe.sizes]

    def program(x):
        recipe = prepare("a b", axes=tuple([2, 3]))
        same = recipe is prepare("a b", axes=(2, 3)), sizes_of(recipe, 2) is sizes_of(recipe, 2)
        shaped = prepare("a b", axes=(("h", 2),), shape=x.shape) is prepare(
            "a b", axes=(("h", 2),), shape=tuple(x.shape)
        )
        return [x * size for size in sizes_of(recipe, 2)], same, recipe is prepare("a c"), shaped

    return program


@programs.made()
def subclasses_are_looked_for():
    class Backend:
        def suits(self, value):
            raise NotImplementedError

    class Numbers(Backend):
        def suits(self, value):
            return isinstance(value, float)

    class Tensors(Numbers):
        def suits(self, value):
            return isinstance(value, torch.Tensor)

    def program(x):
        found, open_ones = [], Backend.__subclasses__()
        while open_ones:
            backend = open_ones.pop()
            open_ones += backend.__subclasses__()
            found.append(backend)
        return [backend.__name__ for backend in found if backend().suits(x)], len(found), Tensors.mro()[1] is Numbers

    return program


@programs()
def wraps_metadata(x):
    def deco(f):
        @functools.wraps(f)
        def g(*a, **k):
            return f(*a, **k) * 2

        return g

    @deco
    def named(v):
        """doc"""
        return v + 1

    return named(x), named.__name__, named.__doc__, named.__wrapped__(x)


@programs(breaks=True)
def cached_property_fresh(x):
    class A:
        n = 0

        @functools.cached_property
        def slow(self):
            A_calls.append(1)
            return x * 2

    A_calls: list = []
    a = A()
    return a.slow, a.slow is a.slow, len(A_calls), "slow" in a.__dict__


class Lazy:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def table(self):
        return [self.n] * 2

    @functools.cached_property
    def tensor(self):
        return torch.ones(6) * self.n


@programs(lambda: (vector(), Lazy(2)), lambda: (vector(), Lazy(2)))
def cached_property_of_outside(x, lazy):
    return x * lazy.table[0], lazy.table is lazy.table, x + lazy.tensor, lazy.tensor is lazy.tensor


@functools.singledispatch
def kind(v):
    return "object"


@kind.register
def _(v: int):
    return "int"


@kind.register(list)
def _(v):
    return "list"


@kind.register(torch.Tensor)
def _(v):
    return v + 1


@programs()
def singledispatch_function(x):
    return kind(3), kind([1]), kind("s"), kind(x), kind(True)


@programs(breaks=True)
def total_ordering_and_cmp_to_key(x):
    @functools.total_ordering
    class N:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return self.n == o.n

        def __lt__(self, o):
            return self.n < o.n

    return N(1) <= N(2), N(3) > N(2), sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)), x


# -- itertools, operator ------------------------------------------------------------------------------------------------------


@programs()
def itertools_finite(x):
    i = itertools
    return (
        list(i.chain([1], (2,), "a")), list(i.chain.from_iterable([[1], [2]])), list(i.islice("abcdef", 1, 5, 2)),
        list(i.product([1, 2], "ab")), list(i.permutations([1, 2, 3], 2)), list(i.combinations("abc", 2)),
        list(i.combinations_with_replacement("ab", 2)), list(i.accumulate([1, 2, 3])), list(i.accumulate([1, 2, 3], operator.mul)),
        list(i.starmap(pow, [(2, 3), (3, 2)])), list(i.takewhile(lambda v: v < 3, range(6))), list(i.dropwhile(lambda v: v < 3, range(6))),
        list(i.filterfalse(lambda v: v % 2, range(5))), list(i.compress("abc", [1, 0, 1])), list(i.zip_longest([1, 2], "a", fillvalue="-")),
        list(i.pairwise([1, 2, 3])), [(k, list(g)) for k, g in i.groupby("aabbb")], x,
    )  # fmt: skip


@programs(breaks=True)
def itertools_infinite_and_tee(x):
    c = itertools.count(5, 2)
    cyc = itertools.cycle([x, 1])
    a, b = itertools.tee([1, 2, 3])
    return next(c), next(c), [next(cyc) for _ in range(3)], list(a), next(b), list(itertools.repeat(x, 2))


@programs()
def itertools_over_tensors(x):
    parts = list(itertools.accumulate([x, x, x], lambda a, b: a + b * 2))
    return parts, [a + b for a, b in itertools.product([x, -x], [1, 2])], sum(itertools.chain([x], [x]))


@programs()
def operator_functions(x):
    o = operator
    return (
        o.add(1, 2), o.mul(x, 2), o.itemgetter(1)([5, 6]), o.itemgetter(0, 1)("ab"), o.attrgetter("shape")(x), o.methodcaller("sum")(x),
        o.getitem({"a": 1}, "a"), o.contains([1], 1), o.truth([]), o.neg(3), o.matmul(x, x), o.index(4), o.not_(0), o.is_(x, x),
        o.concat([1], [2]), o.countOf([1, 1], 1), o.lt(1, 2), o.iadd(3, 4), o.pow(2, 3), o.floordiv(7, 2), o.attrgetter("dtype", "ndim")(x),
    )  # fmt: skip


@programs()
def operator_setitem_and_delitem(x):
    d = {}
    operator.setitem(d, "a", x)
    v = [1, 2]
    operator.delitem(v, 0)
    return d, v


# -- copy, inspect, typing, warnings, logging -----------------------------------------------------------------------------------


class Copied:
    def __init__(self, v):
        self.v = v
        self.items = [v]


class CustomCopy:
    def __init__(self, n):
        self.n = n

    def __copy__(self):
        return CustomCopy(self.n + 1)

    def __deepcopy__(self, memo):
        return CustomCopy(self.n + 2)


@programs()
def copy_and_deepcopy(x):
    a = [1, [2, {"k": (3, [4])}]]
    b = copy.copy(a)
    c = copy.deepcopy(a)
    o = Copied(5)
    s = copy.copy(o)
    d = copy.deepcopy(o)
    return (
        b[1] is a[1],
        c,
        c[1] is a[1],
        s.items is o.items,
        d.items is o.items,
        d.v,
        copy.copy(CustomCopy(1)).n,
        copy.deepcopy(CustomCopy(1)).n,
        x,
    )


@programs(lambda: (vector(), {"a": [1, 2]}), lambda: (vector(), {"a": [1, 2]}))
def copy_of_outside_container(x, d):
    e = copy.deepcopy(d)
    e["a"].append(x)
    f = copy.copy(d)
    return e, f["a"] is d["a"], d


@programs()
def inspect_signature(x):
    def f(a, b=1, *, c: int = 2, **k):
        return a

    s = inspect.signature(f)
    return list(s.parameters), s.parameters["b"].default, inspect.isfunction(f), inspect.isclass(int), f(x)


def outside_signature(a, b: int = 1, *rest, c=2):
    return a


@programs()
def inspect_of_outside_function(x):
    s = inspect.signature(outside_signature)
    b = s.bind(x, 2, c=3)
    b.apply_defaults()
    return list(s.parameters), b.arguments["b"], inspect.getfullargspec(outside_signature).args, x


@programs()
def typing_helpers(x):
    v = typing.cast("list[int]", [1])
    return (
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        v,
        typing.Optional[int] is not None,
        list[int]([1]),
        x,
    )


@programs(breaks=True)
def warnings_are_issued(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning)
        x = x + 1
    return x, [str(w.message) for w in seen]


LOG = logging.getLogger("magneto-language-tests")


@programs()
def logging_below_level(x):
    LOG.debug("nothing %s", x.dim())
    if LOG.isEnabledFor(logging.DEBUG):
        x = x * 100
    return x + 1


@programs.made(breaks=True)
def logging_is_written():
    lines: list = []

    class Handler(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger = logging.Logger("written")
    logger.addHandler(Handler())

    def program(x):
        x = x + 1
        logger.warning("seen %d", x.dim())
        return x * 2

    program.watched = (lines,)
    return program


@programs()
def abstract_classes(x):
    class Base(abc.ABC):
        @abc.abstractmethod
        def f(self, v): ...

    class Good(Base):
        def f(self, v):
            return v * 2

    try:
        Base()
    except TypeError as error:
        return str(error)[:20], Good().f(x), isinstance(Good(), Base)


@programs()
def protocols(x):
    @typing.runtime_checkable
    class HasF(typing.Protocol):
        def f(self): ...

    class A:
        def f(self):
            return x

    return isinstance(A(), HasF), isinstance(3, HasF), A().f()


@programs(breaks=True)
def generic_classes(x):
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

    return Box[int](3).v, Box(x).v + 1


Content = typing.TypeVar("Content")


class Shelf(typing.Generic[Content]):
    def __init__(self, content: Content) -> None:
        self.content = content


@programs.made()
def instances_of_generic_classes():
    outside = Shelf(2)

    def program(x):
        outside.content += 1
        shelf = Shelf(x * outside.content)
        return shelf, shelf.content + 1, isinstance(shelf, typing.Generic), vars(outside)

    return program


@programs()
def heapq_and_bisect(x):
    import bisect
    import heapq

    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return heapq.heappop(h), heapq.nsmallest(2, h), bisect.bisect([1, 3, 5], 3), bisect.bisect_left([1, 3, 5], 3), x


@programs()
def regular_expressions(x):
    import re

    m = re.match(r"(\w+)-(?P<n>\d+)", "abc-42")
    return (
        m.group(1),
        m["n"],
        m.groups(),
        re.sub("a", "b", "aa"),
        re.findall(r"\d", "1a2"),
        re.split(",", "a,b"),
        bool(re.compile("q").search("z")),
        x,
    )


@programs(breaks=True)
def json_text(x):
    import json

    return json.dumps({"a": [1, None, True], "b": 2.5}), json.loads('{"k": [1, 2]}'), x


@programs(breaks=True)
def random_module(x):
    import random

    random.seed(3)
    return x * random.random(), random.randint(1, 5)


@programs(breaks=True)
def time_is_read(x):
    import time

    t = time.perf_counter()
    return x + 1, t > 0


@programs()
def struct_and_string_constants(x):
    import string
    import struct

    return struct.pack("<H", 5), struct.unpack("<H", b"\x05\x00"), string.ascii_lowercase[:3], x


@programs()
def decimal_and_fractions(x):
    from fractions import Fraction

    f = Fraction(1, 3) + Fraction(1, 6)
    return f.numerator, f.denominator, float(f), x * float(f)


@programs(breaks=True)
def simple_namespace_and_mapping_proxy(x):
    import types

    n = types.SimpleNamespace(a=1, b=x)
    n.c = 3
    m = types.MappingProxyType({"k": x})
    return n.a, n.b, n.c, m["k"], len(m), vars(n) == {"a": 1, "b": x, "c": 3}


@programs(breaks=True)
def context_variable(x):
    import contextvars

    var = contextvars.ContextVar("v", default=1)
    token = var.set(5)
    y = x * var.get()
    var.reset(token)
    return y, var.get()


@programs.made(breaks=True)
def context_variable_keeps_a_tensor():
    import contextvars

    var = contextvars.ContextVar("kept", default=None)

    def program(x):
        before = var.get()
        var.set(x + 1)
        return var.get() * 2, before

    return program


@programs()
def weak_references(x):
    import weakref

    class A:
        pass

    a = A()
    r = weakref.ref(a)
    return r() is a, x
