"""Guards: every check, passing and failing, and what a failure says."""

import collections
import enum
import math
import types

import pytest
import torch
from guard_support import UNBOUND, Guards, Plain, X, local


def test_type():
    guards = Guards((X, "type", int))
    assert guards(3) and not guards(True) and not guards(3.0)
    assert (
        guards.why(True)
        == "___check_type_id(L['x'], <class 'int'>): expected type <class 'int'>, actual <class 'bool'>"
    )

    class Text(str):
        pass

    assert not Guards((X, "type", str))(Text("a"))
    assert not Guards((X, "type", dict))(collections.OrderedDict())


def test_identity():
    value = [1]
    guards = Guards((X, "identity", value))
    assert guards(value) and not guards([1])
    assert guards.why([1]) == "___check_obj_id(L['x'], <list object>): actual another <list object>"
    assert guards.why(None) == "___check_obj_id(L['x'], <list object>): actual None"


NAN = float("nan")
CONSTANTS = [
    None,
    ...,
    NotImplemented,
    True,
    False,
    0,
    1,
    -1,
    10**30,
    0.0,
    -0.0,
    1.0,
    NAN,
    math.inf,
    0j,
    -0j,
    1j,
    complex(NAN, 0),
    "",
    "a",
    "1",
    b"",
    b"a",
    (),
    (1,),
    (True,),
    (1.0,),
    (1, (2, "x")),
    (0.0,),
    (-0.0,),
    frozenset(),
    frozenset({1}),
    frozenset({True}),
    frozenset({1, "a", None}),
    frozenset({0.0}),
    frozenset({-0.0}),
    (frozenset({(1, 2)}),),
]


def copy_of(constant):
    """An equal object, another one where Python allows."""
    if type(constant) is int:
        return int(str(constant))
    if type(constant) is float:
        return float(repr(constant))
    if type(constant) is complex:
        return complex(constant.real, constant.imag)
    if type(constant) is str:
        return "".join(list(constant))
    if type(constant) is bytes:
        return bytes(bytearray(constant))
    if type(constant) is tuple:
        return tuple([copy_of(item) for item in constant])
    if type(constant) is frozenset:
        return frozenset(set(constant))  # with its places, which are part of what is guarded: they make the order
    return constant


def name_of(constant):
    """The same in each process: a set's order follows the hashes of its strings."""
    return f"frozenset{sorted(constant, key=repr)}" if type(constant) is frozenset else repr(constant)


@pytest.mark.parametrize("constant", [c for c in CONSTANTS if c is not UNBOUND], ids=name_of)
def test_equals_is_exact(constant):
    wrap = Guards((X + (("seq", 0),), "equals", constant))
    assert wrap([constant]) and wrap([copy_of(constant)])
    for other in CONSTANTS:
        if other is not constant:
            assert not wrap([other]), other


def test_equals_sees_subclasses_and_words_the_difference():
    class Text(str):
        pass

    class Level(enum.IntEnum):
        THREE = 3

    class Loud(int):
        def __eq__(self, other):
            raise AssertionError("guards must not call this")

        __hash__ = None

    guards = Guards((X, "equals", 3))
    assert not guards(Level.THREE) and not guards(Loud(3)) and not guards(3.0)
    assert guards.why(4) == "L['x'] == 3: expected 3, actual 4"
    assert guards.why(True) == "L['x'] == 3: expected 3 (int), actual True (bool)"
    assert guards.why([1]) == "L['x'] == 3: expected 3 (int), actual <list object> (list)"
    assert not Guards((X, "equals", "a"))(Text("a"))
    pair = collections.namedtuple("pair", "a b")
    assert not Guards((X, "equals", (1, 2)))(pair(1, 2))


def test_absent():
    path = X + (("attr", "extra"),)
    guards = Guards((path, "absent"))
    value = Plain(a=1)
    assert guards(value) and guards(3) and guards.values(value) == (UNBOUND,)
    value.extra = 1
    assert not guards(value)
    assert guards.why(value) == "not hasattr(L['x'], 'extra')"
    del value.extra
    assert guards(value)
    assert Guards((path, "require")).why(value) == "hasattr(L['x'], 'extra')"
    item = Guards((X + (("item", "k"),), "absent"))
    assert item({}) and not item({"k": 1})
    assert item.why({"k": 1}) == "'k' not in L['x']"
    cell = Guards((X + (("cell",),), "absent"))
    assert cell(types.CellType()) and not cell(types.CellType(1))
    assert cell.why(types.CellType(1)) == "L['x'].cell_contents is not bound"
    unbound = Guards((X, "absent"))
    assert unbound(UNBOUND) and not unbound(1)
    assert unbound.why(1) == "L['x'] is not bound"
    below = Guards((X + (("attr", "extra"),), "absent"), (X + (("attr", "extra"), ("item", "k")), "absent"))
    assert below(value)


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        set,
        frozenset,
        dict.fromkeys,
        collections.OrderedDict.fromkeys,
        type("Sub", (list,), {"__len__": lambda self: 99}),
        type("Subset", (set,), {"__len__": lambda self: 99}),
    ],
)
def test_length(make):
    three = make([1, 2, 3])
    guards = Guards((X, "length", type(three), 3))
    assert guards(three) and guards(make([4, 5, 6])) and not guards(make([1, 2])) and not guards(None)
    assert guards.why(make([1, 2])) == "len(L['x']) == 3: actual 2"
    assert not guards([1, 2, 3] if type(three) is not list else (1, 2, 3))
    for change in ("append", "add"):
        if hasattr(three, change):
            getattr(three, change)(9)
            assert not guards(three)
    if isinstance(three, dict):
        three[9] = 9
        assert not guards(three)
        del three[9]
        assert guards(three)


@pytest.mark.parametrize(
    "kind",
    [
        dict,
        collections.OrderedDict,
        collections.defaultdict,
        type("D", (dict,), {"__iter__": None, "keys": None}),
        type("O", (collections.OrderedDict,), {}),
    ],
)
def test_dict_keys(kind):
    def make(*keys):
        made = kind()
        for key in keys:
            made[key] = 0
        return made

    guards = Guards((X, "dict_keys", kind, ["a", 1, None]))
    value = make("a", 1, None)
    assert guards(value) and guards(make("a", 1, None))
    assert not guards(make(1, "a", None)) and not guards(make("a", 1)) and not guards(make("a", 1, None, 2))
    assert not guards(make("a", True, None)) and not guards(make("a", 1.0, None))
    value["a"] = 7  # not a change of keys
    assert guards(value)
    del value["a"]
    assert not guards(value)
    value["a"] = 1  # now last
    assert not guards(value)
    assert guards.why(value) == "list(dict.keys(L['x'])) == ['a', 1, None]: actual [1, None, 'a']"
    if issubclass(kind, collections.OrderedDict):
        value.move_to_end(1)
        value.move_to_end(None)
        assert list(collections.OrderedDict.__iter__(value)) == ["a", 1, None]
        assert guards(value)
        value.move_to_end("a", last=True)
        assert not guards(value)
    if kind is not dict:
        assert not guards({"a": 0, 1: 0, None: 0})


def test_alias_and_distinct():
    y = local(1, "y")
    one, two = torch.ones(1), torch.ones(1)
    alias, distinct = Guards((X, "alias", y)), Guards((X, "distinct", y))
    assert alias(one, one) and not alias(one, two)
    assert distinct(one, two) and not distinct(one, one)
    assert alias.why(one, two) == "L['x'] is L['y']: they are different objects now"
    assert distinct.why(one, one) == "L['x'] is not L['y']: they are one object now"
    # Two entries of one dict, remembered with it.
    a, b = X + (("item", "a"),), X + (("item", "b"),)
    entries = Guards((a, "distinct", b))
    value = {"a": one, "b": two}
    assert entries(value)
    value["b"] = one
    assert not entries(value)


def test_all_distinct():
    paths = [local(0, "a"), local(1, "b"), local(2, "d") + (("item", "k"),), local(2, "d") + (("item", "gone"),)]
    guards = Guards((None, "all_distinct", paths), (paths[3], "absent"))
    one, two, three = object(), object(), object()
    assert guards(one, two, {"k": three}) and guards(one, two, {"k": three})
    assert not guards(one, one, {"k": three})
    assert guards.why(one, one, {"k": three}) == "L['a'] is not L['b']: they are one object now"
    value = {"k": two}
    assert guards.why(one, two, value) == "L['b'] is not L['d']['k']: they are one object now"
    value["k"] = three
    assert guards(one, two, value)
    assert guards(three, two, {"k": one})
    assert "NO_OBJECT_ALIASING: check_no_aliasing(L['a'], L['b'], L['d']['k'], L['d']['gone'])" in guards.text()
    objects = [object() for _ in range(300)]
    many = Guards((None, "all_distinct", [X + (("seq", i),) for i in range(300)]))
    assert many(objects)
    objects[299] = objects[7]
    assert not many(objects)
    assert many.why(objects) == "L['x'][7] is not L['x'][299]: they are one object now"


def test_function():
    def f(a, b=1, *, c=2):
        return a

    def g(a, b=1, *, c=2):
        return a

    guards = Guards((X, "function", f))
    assert guards(f) and not guards(g) and not guards(len)
    assert "actual code <code test_function.<locals>.g, line" in guards.why(g)
    same = types.FunctionType(f.__code__, f.__globals__, "same", f.__defaults__, f.__closure__)
    assert not guards(same)  # no keyword defaults
    same.__kwdefaults__ = f.__kwdefaults__
    assert guards(same)
    f.__defaults__ = (2,)
    assert not guards(f)
    assert guards.why(f).endswith("its __defaults__ changed")
    f.__defaults__ = same.__defaults__
    assert guards(f)
    f.__kwdefaults__ = {"c": 2}
    assert not guards(f)
    f.__kwdefaults__ = same.__kwdefaults__
    f.__code__ = g.__code__
    assert not guards(f)
    root = Guards(((("function",),), "function", g))
    assert root(function=g) and not root(function=f.__class__(g.__code__, {}))


def test_type_lookup():
    class Base:
        def method(self):
            pass

    class Derived(Base):
        pass

    guards = Guards(
        (None, "type_lookup", Derived, "method", Base.method), (None, "type_lookup_missing", Derived, "other")
    )
    assert guards()
    Derived.unrelated = 1
    assert guards()
    Derived.method = original = lambda self: None
    assert not guards()
    assert guards.why().startswith(
        f"_PyType_Lookup(<class '{__name__}.test_type_lookup.<locals>.Derived'>, 'method') is"
    )
    del Derived.method
    assert guards()
    method, Base.method = Base.method, original
    assert not guards()
    Base.method = method
    assert guards()
    Base.other = 1
    assert not guards()
    del Base.other
    assert guards()
    Derived.__bases__ = (type("Middle", (Base,), {"method": original}),)
    assert not guards()


def test_type_lookup_of_builtin_type():
    guards = Guards((None, "type_lookup", int, "bit_length", int.__dict__["bit_length"]))
    assert guards() and guards()
