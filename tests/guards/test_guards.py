"""Guards: every way to reach a value, every check, and every change that must be noticed."""

import collections
import enum
import gc
import math
import sys
import types
import weakref

import pytest
import torch

from magneto import _C

UNBOUND = NotImplemented


def local(index=0, name="x"):
    return (("local", index, name),)


X = local()


class Guards:
    """A compiled guard set, called with the values of the locals."""

    def __init__(self, *descriptions):
        self.program = _C.guards_compile(list(descriptions))

    def roots(self, values, function=None, stack=()):
        return (function, values, stack)

    def __call__(self, *values, **roots):
        """Whether the guards hold; `explain` must agree, and asking twice must not change the answer."""
        roots = self.roots(values, **roots)
        first = _C.guards_check(self.program, roots)
        reason = _C.guards_explain(self.program, roots)
        second = _C.guards_check(self.program, roots)
        assert (first is None) == (second is None) == (reason != "")
        return first is not None

    def values(self, *values, **roots):
        return _C.guards_check(self.program, self.roots(values, **roots))

    def why(self, *values, **roots):
        return _C.guards_explain(self.program, self.roots(values, **roots))

    def text(self):
        return _C.guards_print(self.program)


class Plain:
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("a", "b")


def make_closure():
    captured = [1]

    def inner():
        return captured

    def set_captured(value):
        nonlocal captured
        captured = value

    def delete():
        nonlocal captured
        del captured

    return inner, set_captured, delete


# -- sources ---------------------------------------------------------------------------------------------------------

MODULE = types.ModuleType("a_module")
MODULE.value = "in module"
INNER, SET_INNER, DELETE_INNER = make_closure()
WITH_DICT = Plain(attribute="in dict")
SLOTTED = Slotted()
SLOTTED.a = "in slot"
LEAF = torch.ones(2, requires_grad=True)
LEAF.grad = torch.full((2,), 3.0)


class Named(list):
    def __getitem__(self, index):
        raise AssertionError("guards must not call this")


class Missing(dict):
    def __missing__(self, key):
        raise AssertionError("guards must not call this")

    __getitem__ = get = __contains__ = __len__ = __iter__ = keys = __missing__


class Dynamic:
    """Attributes that Python code computes are no instance dict entries."""

    def __getattribute__(self, name):
        raise AssertionError("guards must not call this")


DYNAMIC = Dynamic()
object.__setattr__(DYNAMIC, "field", "plain")

SOURCES = [
    (X, "a local", "a local", "L['x']"),
    (X + (("attr", "attribute"),), WITH_DICT, "in dict", "L['x'].attribute"),
    (X + (("attr", "field"),), DYNAMIC, "plain", "L['x'].field"),
    (X + (("attr", "value"),), MODULE, "in module", "L['x'].value"),
    (X + (("attr", "__init__"),), Plain, Plain.__init__, "L['x'].__init__"),
    (X + (("attr", "bit_length"),), int, int.__dict__["bit_length"], "L['x'].bit_length"),
    (X + (("dict",),), WITH_DICT, WITH_DICT.__dict__, "L['x'].__dict__"),
    (X + (("dict",), ("item", "attribute")), WITH_DICT, "in dict", "L['x'].__dict__['attribute']"),
    (X + (("slot", Slotted.a),), SLOTTED, "in slot", "L['x'].a"),
    (X + (("item", "k"),), {"k": 1}, 1, "L['x']['k']"),
    (X + (("item", 3),), {"k": 1, 3: "three"}, "three", "L['x'][3]"),
    (X + (("item", (1, "a")),), {(1, "a"): "tuple"}, "tuple", "L['x'][(1, 'a')]"),
    (X + (("item", None),), {None: "none"}, "none", "L['x'][None]"),
    (X + (("item", 2.5),), {2.5: "float"}, "float", "L['x'][2.5]"),
    (X + (("item", b"b"),), {b"b": "bytes"}, "bytes", "L['x'][b'b']"),
    (X + (("item", int),), {int: "type"}, "type", "L['x'][<class 'int'>]"),
    (X + (("item", torch.float32),), {torch.float32: "dtype"}, "dtype", "L['x'][torch.float32]"),
    (X + (("item", torch.device("cpu")),), {torch.device("cpu"): "dev"}, "dev", "L['x'][device(type='cpu')]"),
    (X + (("item", "k"),), Missing(k="past the override"), "past the override", "L['x']['k']"),
    (X + (("seq", 1),), [1, "two"], "two", "L['x'][1]"),
    (X + (("seq", 1),), (1, "two"), "two", "L['x'][1]"),
    (X + (("seq", 0),), Named(["item"]), "item", "L['x'][0]"),
    (X + (("seq", 1),), torch.Size([2, 3]), 3, "L['x'][1]"),
    (X + (("cell",),), types.CellType("content"), "content", "L['x'].cell_contents"),
    (X + (("closure", 0, "captured"),), INNER, INNER.__closure__[0].cell_contents, "L['captured']"),
    (X + (("self",),), SLOTTED.__init__.__self__.__class__.mro, None, "L['x'].__self__"),
    (X + (("grad",),), LEAF, LEAF.grad, "L['x'].grad"),
    (X + (("grad",),), torch.ones(1), None, "L['x'].grad"),
]


def bound():
    class Bound:
        def method(self):
            pass

    return Bound().method


METHOD = bound()
SOURCES[-3] = (X + (("self",),), METHOD, METHOD.__self__, "L['x'].__self__")
SOURCES.append((X + (("func",),), METHOD, METHOD.__func__, "L['x'].__func__"))


@pytest.mark.parametrize("path, root, value, name", SOURCES, ids=[row[3] for row in SOURCES])
def test_source_loads_and_prints(path, root, value, name):
    guards = Guards((path, "require"))
    assert guards.values(root)[0] is value
    assert guards.values(root)[0] is value  # and once more from memory
    assert _C.guards_names([path]) == [(name, len(path) - 1)]
    assert not guards(UNBOUND)
    assert guards.why(UNBOUND) == "L['x'] is bound"


def test_roots():
    guards = Guards(((("function",),), "require"), ((("stack", 1),), "require"), ((("const", math),), "require"))
    assert guards.values(function=INNER, stack=(1, 2)) == (INNER, 2, math)
    assert guards.why(function=INNER, stack=(1, UNBOUND)) == "___stack1 is bound"
    assert guards.why(function=None, stack=(1, 2)) == "___function is bound"


def test_names():
    globals_dict = ("const", globals())
    paths = {
        ((("stack", 2),)): "___stack2",
        ((("function",),)): "___function",
        ((("function",), ("closure", 0, "f"))): "L['f']",
        ((("const", torch), ("attr", "nn"))): "torch.nn",
        ((("const", Plain), ("attr", "a"))): "Plain.a",
        ((("const", make_closure), ("attr", "a"))): "make_closure.a",
        ((("const", len),)): "len",
        ((("const", "text"),)): "'text'",
        ((*local(0, "self"), ("attr", "_modules"), ("item", "0"), ("attr", "weight"))): "L['self']._modules['0'].weight",
    }
    assert [name for name, _ in _C.guards_names(list(paths))] == list(paths.values())
    assert _C.guards_names([(globals_dict, ("item", "np"))])[0][0] == "G['np']"
    assert _C.guards_names([(("const", vars(__builtins__) if not isinstance(__builtins__, dict) else __builtins__),
                             ("item", "len"))])[0][0] == "__builtins__['len']"


def test_equal_paths_are_one_source():
    key = "".join(["a", "b"])
    paths = [X + (("item", "ab"),), X + (("item", key),), X + (("item", 1),), X + (("item", True),),
             X + (("item", 1.0),), X + (("item", 0.0),), X + (("item", -0.0),), X + (("item", (1, 2)),),
             X + (("item", tuple([1, 2])),)]
    table = []
    for path in paths:
        table.append(path)
    numbers = [_C.guards_names([paths[0], path])[1][1] for path in paths]
    assert numbers == [1, 1, 2, 2, 2, 2, 2, 2, 2]


def test_unhashable_and_wrong_descriptions_are_refused():
    with pytest.raises(TypeError, match="unhashable"):
        Guards((X + (("item", []),), "require"))
    with pytest.raises(ValueError, match="member descriptor"):
        Guards((X + (("slot", Plain.__init__),), "require"))
    with pytest.raises(ValueError, match="by value"):
        Guards((X, "equals", [1]))
    with pytest.raises(ValueError, match="by value"):
        Guards((X, "equals", (1, object())))
    with pytest.raises(ValueError, match="needs a tensor"):
        Guards((X, "tensor", 1))
    with pytest.raises(ValueError, match="Python function"):
        Guards((X, "function", len))
    with pytest.raises(ValueError, match="length guard"):
        Guards((X, "length", int, 1))
    with pytest.raises(ValueError, match="symbolic"):
        Guards((X, "tensor", torch.ones(2, 2).to_sparse()))


@pytest.mark.parametrize("step, wrong", [(("item", "k"), [1]), (("seq", 0), {0: 1}), (("cell",), 1), (("self",), 1),
                                         (("func",), len), (("grad",), 1), (("closure", 0, "c"), len)])
def test_base_of_another_kind_fails_even_for_absent_sources(step, wrong):
    assert not Guards((X + (step,), "require"))(wrong)
    assert not Guards((X + (step,), "absent"))(wrong)


def test_slot_of_another_class():
    guards = Guards((X + (("slot", Slotted.b),), "absent"))
    assert guards(SLOTTED)
    other = Slotted()
    other.b = 1
    assert not guards(other)
    assert guards.why(other) == "not hasattr(L['x'], 'b')"
    assert not Guards((X + (("slot", Slotted.a),), "require"))(Plain(a=1))


# -- checks ----------------------------------------------------------------------------------------------------------


def test_type():
    guards = Guards((X, "type", int))
    assert guards(3) and not guards(True) and not guards(3.0)
    assert guards.why(True) == "___check_type_id(L['x'], <class 'int'>): expected type <class 'int'>, actual <class 'bool'>"

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
CONSTANTS = [None, ..., NotImplemented, True, False, 0, 1, -1, 10**30, 0.0, -0.0, 1.0, NAN, math.inf, 0j, -0j, 1j,
             complex(NAN, 0), "", "a", "1", b"", b"a", (), (1,), (True,), (1.0,), (1, (2, "x")), (0.0,), (-0.0,),
             frozenset(), frozenset({1}), frozenset({True}), frozenset({1, "a", None}), frozenset({0.0}),
             frozenset({-0.0}), (frozenset({(1, 2)}),)]


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
        return frozenset([copy_of(item) for item in constant])
    return constant


@pytest.mark.parametrize("constant", [c for c in CONSTANTS if c is not UNBOUND], ids=repr)
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


@pytest.mark.parametrize("make", [list, tuple, set, frozenset, dict.fromkeys, collections.OrderedDict.fromkeys,
                                  type("Sub", (list,), {"__len__": lambda self: 99}),
                                  type("Subset", (set,), {"__len__": lambda self: 99})])
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


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict,
                                  type("D", (dict,), {"__iter__": None, "keys": None}),
                                  type("O", (collections.OrderedDict,), {})])
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

    guards = Guards((None, "type_lookup", Derived, "method", Base.method),
                    (None, "type_lookup_missing", Derived, "other"))
    assert guards()
    Derived.unrelated = 1
    assert guards()
    Derived.method = original = lambda self: None
    assert not guards()
    assert guards.why().startswith("_PyType_Lookup(<class 'test_guards.test_type_lookup.<locals>.Derived'>, 'method') is")
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


# -- tensors ---------------------------------------------------------------------------------------------------------


def test_tensor_messages():
    guards = Guards((X, "tensor", torch.ones(3, 4)))
    assert guards(torch.zeros(3, 4))
    assert guards.why(torch.zeros(4, 4)) == "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"
    assert guards.why(torch.zeros(3, 4).double()) == "tensor 'L['x']' dtype mismatch. expected Float, actual Double"
    assert guards.why(torch.zeros(4, 3).t()) == "tensor 'L['x']' stride mismatch at index 0. expected 4, actual 1"
    assert guards.why(torch.zeros(3)) == "tensor 'L['x']' rank mismatch. expected 2, actual 1"
    assert guards.why(torch.zeros(3, 4, requires_grad=True)) == (
        "tensor 'L['x']' requires_grad mismatch. expected requires_grad=0")
    assert Guards((X, "tensor", torch.ones(1, requires_grad=True))).why(torch.ones(1)) == (
        "tensor 'L['x']' requires_grad mismatch. expected requires_grad=1")
    assert "dispatch key set mismatch. expected DispatchKeySet(CPU" in guards.why(torch.zeros(3, 4, device="meta"))
    assert guards.why(torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False)) == (
        "expected type of 'L['x']' to be <class 'torch.Tensor'>, "
        "but found <class 'torch.nn.parameter.Parameter'>")
    assert guards.why(7) == "expected type of 'L['x']' to be <class 'torch.Tensor'>, but found <class 'int'>"


@pytest.mark.parametrize("other", [
    torch.zeros(2, 3), torch.zeros(3, 2, 1), torch.zeros(()), torch.zeros(0), torch.zeros(3, 2).to(torch.int32),
    torch.zeros(3, 2, requires_grad=True), torch.zeros(2, 3).t(), torch.zeros(3, 2).to_sparse(),
    torch.zeros(3, 2, device="meta"), torch.zeros(3, 2, dtype=torch.complex64).conj(), torch.zeros(3, 4)[:, ::2],
    torch.nested.nested_tensor([torch.zeros(2)]), torch.quantize_per_tensor(torch.zeros(3, 2), 1.0, 0, torch.qint8),
    torch.zeros(3, 2, dtype=torch.complex64).imag, None, [1.0],
], ids=lambda value: type(value).__name__)
def test_other_tensors_fail(other):
    assert not Guards((X, "tensor", torch.zeros(3, 2)))(other)


def test_inference_tensor_is_another_kind():
    with torch.inference_mode():
        inference = torch.zeros(2)
    assert not Guards((X, "tensor", torch.zeros(2)))(inference)
    assert Guards((X, "tensor", inference))(inference)


def test_tensor_changes():
    def changed(change, tensor=None):
        tensor = torch.zeros(2, 3) if tensor is None else tensor
        direct, entry = Guards((X, "tensor", tensor)), Guards((X + (("item", "k"),), "tensor", tensor))
        held = {"k": tensor}
        assert direct(tensor) and entry(held) and entry(held)
        change(tensor)
        assert direct(tensor) == entry(held)
        return not direct(tensor)

    def swap_data(tensor, data):
        tensor.data = data

    assert changed(lambda t: t.resize_(3, 3))
    assert changed(lambda t: t.t_())
    assert changed(lambda t: t.unsqueeze_(0))
    assert changed(lambda t: t.requires_grad_())
    assert changed(lambda t: swap_data(t, torch.zeros(2, 4)))
    assert changed(lambda t: swap_data(t, torch.zeros(2, 3, dtype=torch.float64)))
    assert changed(lambda t: t.mul_(torch.ones(1, requires_grad=True)))
    assert not changed(lambda t: t.add_(1))
    assert not changed(lambda t: swap_data(t, torch.zeros(2, 3)))
    module = torch.nn.Linear(2, 2)
    guards = Guards((X + (("attr", "_parameters"), ("item", "weight")), "tensor", module.weight))
    assert guards(module)
    module.double()
    assert not guards(module)
    module.float()
    assert guards(module)
    module.requires_grad_(False)
    assert not guards(module)


def test_view_whose_base_came_to_require_grad():
    base = torch.zeros(4)
    view = base[:2]
    guards = Guards((X, "tensor", view))
    assert guards(view)
    base.requires_grad_()
    assert view.requires_grad != guards(view)


def test_many_dimensions_and_scalars():
    for shape in ((), (1,), (0, 5), (1, 2, 3, 4, 5, 6, 7)):
        guards = Guards((X, "tensor", torch.zeros(shape)))
        assert guards(torch.ones(shape)) and not guards(torch.ones((*shape, 2)))


def test_grad_is_followed():
    leaf = torch.ones(2, requires_grad=True)
    guards = Guards((X + (("grad",),), "tensor", torch.ones(2)))
    assert not guards(leaf)
    leaf.sum().backward()
    assert guards(leaf) and guards.values(leaf)[0] is leaf.grad
    leaf.grad = None
    assert not guards(leaf)
    assert Guards((X + (("grad",),), "equals", None))(leaf)
    hidden = torch.ones(2, requires_grad=True)
    hidden.sum().backward()  # no Python object of the gradient exists before the guard makes one
    first = Guards((X + (("grad",),), "require")).values(hidden)[0]
    gc.collect()
    assert first is hidden.grad and torch.equal(first, torch.ones(2))


# -- what must be noticed --------------------------------------------------------------------------------------------


def test_dict_changes_are_noticed_and_undone():
    path = X + (("attr", "table"), ("item", "k"))
    holder = Plain(table={"k": 1, "other": 2})
    guards = Guards((path, "equals", 1))
    for _ in range(3):
        assert guards(holder)
        holder.table["other"] = 3
        assert guards(holder)
        holder.table["k"] = 2
        assert not guards(holder)
        assert guards.why(holder) == "L['x'].table['k'] == 1: expected 1, actual 2"
        del holder.table["k"]
        assert not guards(holder)
        assert guards.why(holder) == "'k' in L['x'].table"
        holder.table["k"] = True
        assert not guards(holder)
        holder.table.update(k=1)
        assert guards(holder)
        holder.table.clear()
        assert not guards(holder)
        holder.table = {"k": 1}
        assert guards(holder)
        holder.__dict__ = {"table": {"k": 5}}
        assert not guards(holder)
        holder.__dict__ = {"table": {"k": 1}}
        assert guards(holder)


@pytest.mark.parametrize("change", [
    lambda d: d.pop("k"), lambda d: d.popitem(), lambda d: d.clear(), lambda d: d.setdefault("new", 1),
    lambda d: d.__setitem__("k", 2), lambda d: d.__delitem__("k"), lambda d: d.update(k=3), lambda d: d.__ior__({"k": 3}),
], ids=range(8))
def test_every_dict_method_is_seen(change):
    value = {"first": 0, "k": 1}
    guards = Guards((X, "dict_keys", dict, ["first", "k"]), (X + (("item", "k"),), "equals", 1))
    assert guards(value) and guards(value)
    change(value)
    assert not guards(value)


def test_object_replaced_by_an_equal_one():
    holder = Plain(child=Plain(n=1))
    guards = Guards((X + (("attr", "child"),), "type", Plain), (X + (("attr", "child"), ("attr", "n")), "equals", 1))
    assert guards(holder)
    holder.child = Plain(n=1)
    assert guards(holder)
    holder.child.n = 2
    assert not guards(holder)
    holder.child = Plain(n=1)
    assert guards(holder)
    assert guards(Plain(child=Plain(n=1)))
    assert not guards(Plain(child=Plain(n=2)))


def test_class_of_a_remembered_object_changes():
    class Other:
        pass

    holder = Plain(child=Plain(n=1))
    guards = Guards((X + (("attr", "child"),), "type", Plain), (X + (("attr", "child"), ("attr", "n")), "equals", 1))
    assert guards(holder)
    holder.child.__class__ = Other
    assert not guards(holder)
    module = types.ModuleType("m")
    holder = Plain(child=module)
    guards = Guards((X + (("attr", "child"),), "type", types.ModuleType))
    assert guards(holder)
    module.__class__ = type("Sub", (types.ModuleType,), {})
    assert not guards(holder)


def test_inline_values():
    """Objects whose attributes live in the object itself (CPython 3.11+), one after the other and changed in between."""
    guards = Guards((X + (("attr", "a"),), "equals", 1), (X + (("attr", "b"),), "absent"))
    for _ in range(100):
        value = Plain(a=1)
        assert guards(value)
        value.a = 2
        assert not guards(value)
        value.a = 1
        assert guards(value)
        value.b = 1
        assert not guards(value)
        del value.b
        assert guards(value)
        assert value.__dict__ == {"a": 1}

    def store(target, value):
        target.a = value

    values = [Plain(a=1) for _ in range(50)]
    for turn in range(200):  # specialised bytecode writes attributes past the C API
        value = values[turn % 50]
        store(value, turn % 3)
        assert guards(value) == (turn % 3 == 1)


def test_address_reuse():
    guards = Guards((X + (("attr", "t"), ("item", "k")), "equals", 1))
    for turn in range(200):
        value = turn % 2
        assert guards(Plain(t={"k": value})) == (value == 1)


def test_cells_and_closures():
    inner, set_captured, delete = make_closure()
    guards = Guards((X + (("closure", 0, "captured"),), "length", list, 1))
    assert guards(inner)
    set_captured([1, 2])
    assert not guards(inner)
    set_captured([3])
    assert guards(inner)
    delete()
    assert not guards(inner)
    assert guards.why(inner) == "L['captured'] is bound"
    assert Guards((X + (("closure", 0, "captured"),), "absent"))(inner)
    assert not Guards((X + (("closure", 1, "captured"),), "require"))(inner)
    cell = types.CellType(1)
    guards = Guards((X + (("cell",),), "equals", 1))
    assert guards(cell)
    cell.cell_contents = 2
    assert not guards(cell)
    del cell.cell_contents
    assert not guards(cell)


def test_tuples_below_a_remembered_entry():
    inner = [1]
    holder = {"t": (inner, 2)}
    entry = X + (("item", "t"),)
    guards = Guards((entry, "length", tuple, 2), (entry + (("seq", 0),), "length", list, 1),
                    (entry + (("seq", 1),), "equals", 2))
    assert guards(holder) and guards(holder)
    inner.append(2)
    assert not guards(holder)
    assert guards.why(holder) == "len(L['x']['t'][0]) == 1: actual 2"
    inner.pop()
    assert guards(holder)
    holder["t"] = (inner, 3)
    assert not guards(holder)
    holder["t"] = [inner, 2]
    assert not guards(holder)


def test_list_items_are_read_each_time():
    value = [1, 2]
    guards = Guards((X + (("seq", 1),), "equals", 2))
    assert guards(value)
    value[1] = 3
    assert not guards(value)
    assert guards.why(value) == "L['x'][1] == 2: expected 2, actual 3"
    value.pop()
    assert not guards(value)
    assert guards.why(value) == "len(L['x']) > 1"


def test_bound_methods():
    one, two = bound(), bound()
    guards = Guards((X + (("item", "m"), ("func",)), "identity", one.__func__))
    holder = {"m": one}
    assert guards(holder) and guards(holder)
    holder["m"] = two
    assert not guards(holder)
    holder["m"] = len
    assert not guards(holder)


def test_python_equality_is_never_run():
    class Key:
        def __init__(self, text):
            self.text = text

        def __hash__(self):
            return hash(self.text)

        def __eq__(self, other):
            raise AssertionError("guards must not call this")

    value = {Key("k"): 1, "other": 2}
    present, missing = Guards((X + (("item", "k"),), "require")), Guards((X + (("item", "k"),), "absent"))
    assert not present(value) and not missing(value)  # only that __eq__ could tell
    assert missing.why(value) == "'k' not in L['x']: only a key's own __eq__ could tell"
    assert Guards((X + (("item", "other"),), "equals", 2))(value)
    assert missing({Key("z"): 1}) and not present({Key("z"): 1})
    key = Key("k")
    assert Guards((X + (("item", key),), "equals", 5))({key: 5})

    class Text(str):
        pass

    assert present({Text("k"): 1, 1: 2})  # compares as a str does


def test_numbers_are_one_key_as_in_a_dict():
    assert Guards((X + (("item", 1),), "equals", "v"))({True: "v"})
    assert Guards((X + (("item", True),), "equals", "v"))({1.0: "v", "a": 0})
    assert Guards((X + (("item", (1, 2)),), "equals", "v"))({(1.0, 2): "v"})


@pytest.mark.parametrize("size", [5, 200, 70_000])
def test_large_dicts(size):
    for key in (lambda i: f"k{i}", lambda i: i * 7919, lambda i: (i, "x")):
        value = {key(i): i for i in range(size)}
        for i in range(0, size, 2):
            if i % 6 == 0:
                del value[key(i)]
        for i in range(0, size, max(1, size // 50)):
            item = X + (("item", key(i)),)
            if key(i) in value:
                assert Guards((item, "require")).values(value)[0] is value[key(i)]
            else:
                assert Guards((item, "absent"))(value)


def test_split_dicts_with_missing_entries():
    values = [Plain(a=1, b=2, c=3), Plain(a=1)]
    guards = Guards((X + (("attr", "a"),), "require"), (X + (("attr", "b"),), "absent"))
    assert not guards(values[0]) and guards(values[1])
    del values[0].b
    assert guards(values[0])


def test_enum_members_and_modules():
    class Color(enum.Enum):
        RED = 1

    guards = Guards((X, "identity", Color.RED), (local(1, "d") + (("item", Color.RED),), "equals", 1))
    assert guards(Color.RED, {Color.RED: 1}) and not guards(1, {Color.RED: 1})
    globals_guard = Guards(((("const", globals()), ("item", "MODULE"), ("attr", "value")), "equals", "in module"))
    assert globals_guard()
    MODULE.value = "changed"
    assert not globals_guard()
    assert globals_guard.why() == "G['MODULE'].value == 'in module': expected 'in module', actual 'changed'"
    MODULE.value = "in module"
    assert globals_guard()


def test_failures_and_successes_in_any_order():
    holder = Plain(a=Plain(n=1), b=Plain(n=2), c=[1, 2])
    guards = Guards((X + (("attr", "a"), ("attr", "n")), "equals", 1), (X + (("attr", "b"), ("attr", "n")), "equals", 2),
                    (X + (("attr", "c"), ("seq", 1)), "equals", 2), (local(1, "y"), "tensor", torch.ones(2)))
    good, bad = torch.ones(2), torch.ones(3)
    state = 12345
    for _ in range(600):
        state = (state * 1103515245 + 12345) % 2**31
        choice = state >> 16
        holder.a.n = 1 + (choice % 7 == 0)
        if choice % 5 == 0:
            holder.b = Plain(n=2 + (choice % 3 == 0))
        holder.c[1] = 2 + (choice % 11 == 0)
        y = bad if choice % 13 == 0 else good
        expected = holder.a.n == 1 and holder.b.n == 2 and holder.c[1] == 2 and y is good
        roots = guards.roots((holder, y))
        assert (_C.guards_check(guards.program, roots) is not None) == expected
        if choice % 17 == 0:
            assert (guards.why(holder, y) == "") == expected


def test_values_after_a_hit_are_current():
    path = X + (("attr", "a"), ("item", "t"))
    guards = Guards((path, "require"), (X, "type", Plain))
    one = Plain(a={"t": object()})
    two = Plain(a={"t": object()})
    for value in (one, two, one, one, two):
        assert guards.values(value)[0] is value.a["t"]
    one.a["t"] = fresh = object()
    assert guards.values(one)[0] is fresh


# -- global state ----------------------------------------------------------------------------------------------------


def test_global_state():
    guards = Guards((None, "global_state"))
    assert guards()
    with torch.no_grad():
        assert guards.why() == "global state: grad mode changed: was True, is False"
    with torch.inference_mode():
        assert not guards()
    with torch.autocast("cpu"):
        assert guards.why() == "global state: autocast on CPU changed: was False, is True"
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic algorithms changed" in guards.why()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        assert guards.why() == "global state: default dtype changed: was Float, is Double"
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.overrides.BaseTorchFunctionMode():
        assert guards.why() == "global state: number of torch function modes changed: was 0, is 1"
    with torch._C.DisableTorchFunctionSubclass():
        assert not guards()
    with torch._C.DisableTorchFunction():
        assert not guards()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert "dispatch keys changed" in guards.why()
    seen = []
    torch.vmap(lambda x: seen.append(guards()) or x)(torch.ones(2))
    assert seen == [False]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert guards.why() == f"global state: number of threads changed: was {threads}, is {threads + 1}"
    finally:
        torch.set_num_threads(threads)
    assert guards()
    with torch.no_grad():
        inside = Guards((None, "global_state"))
        assert inside()
    assert not inside()


# -- life time -------------------------------------------------------------------------------------------------------


def everything(holder):
    attribute = X + (("attr", "a"),)
    return [
        (X, "type", Plain), (attribute, "length", list, 1), (attribute + (("seq", 0),), "equals", "deep"),
        (X + (("attr", "d"),), "dict_keys", dict, ["k"]), (X + (("attr", "d"), ("item", "k")), "identity", holder.d["k"]),
        (X + (("attr", "t"),), "tensor", holder.t), (X + (("attr", "f"),), "function", holder.f),
        (X + (("attr", "missing"),), "absent"), (X + (("attr", "t"),), "distinct", X),
        (None, "type_lookup", Plain, "__init__", Plain.__init__), (X + (("dict",),), "require"),
        (X + (("attr", "t"), ("grad",)), "equals", None), (None, "global_state"),
    ]


def test_no_references_leak():
    holder = Plain(a=["deep"], d={"k": Plain()}, t=torch.ones(2), f=lambda: None)
    objects = [holder, holder.a, holder.d, holder.d["k"], holder.t, holder.f, Plain, holder.__dict__, None]

    def counts():
        gc.collect()
        return [sys.getrefcount(o) for o in objects[:-1]]

    def work():
        guards = Guards(*everything(holder))
        bad = Plain(a=[])
        for _ in range(20):
            assert guards(holder)
            assert not guards(bad)
        guards.text()

    work()
    before = counts()
    for _ in range(20):
        work()
    assert counts() == before


def test_program_keeps_what_it_compares_with_and_nothing_it_saw():
    marker = Plain()
    alive = weakref.ref(marker)
    guards = Guards((X + (("item", "m"),), "identity", marker))
    assert guards({"m": marker})
    del marker
    gc.collect()
    assert alive() is not None
    seen = Plain(n=1)
    gone = weakref.ref(seen)
    other = Guards((X + (("attr", "n"),), "equals", 1))
    assert other(seen)
    del seen
    gc.collect()
    assert gone() is None
    assert other(Plain(n=1))
    del guards
    gc.collect()
    assert alive() is None


def test_no_memory_is_lost_by_checks():
    import tracemalloc

    holder = Plain(a=["deep"], d={"k": Plain()}, t=torch.ones(2), f=lambda: None)
    guards = Guards(*everything(holder))
    roots = guards.roots((holder,))
    _C.guards_bench(guards.program, roots, 10)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert _C.guards_bench(guards.program, roots, 10_000)[1] == 10_000
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


# -- text ------------------------------------------------------------------------------------------------------------


def test_print():
    class Model:
        def forward(self):
            pass

    def helper():
        pass

    self = local(0, "self")
    x, y, xs = local(1, "x"), local(2, "y"), local(3, "xs")
    guards = Guards(
        (self, "type", Model),
        (self + (("attr", "training"),), "equals", True),
        (self + (("attr", "_hooks"),), "length", collections.OrderedDict, 0),
        (self + (("attr", "_modules"),), "dict_keys", dict, ["0", "1"]),
        (self + (("attr", "_modules"), ("item", "0"), ("attr", "weight")), "tensor", torch.nn.Parameter(torch.ones(2, 3))),
        (self + (("attr", "scale"),), "absent"),
        (x, "tensor", torch.ones(4)),
        (x, "type", torch.Tensor),
        (x, "tensor", torch.ones(4)),
        (y, "distinct", x),
        (xs, "length", list, 2),
        (xs + (("seq", 1),), "require"),
        ((("const", globals()), ("item", "helper")), "function", helper),
        ((("const", globals()), ("item", "absent")), "absent"),
        ((("const", torch), ("attr", "relu")), "identity", torch.relu),
        (None, "type_lookup", Model, "forward", Model.forward),
        (None, "type_lookup_missing", Model, "__getattr__"),
        (None, "global_state"),
    )
    where = "test_guards.test_print.<locals>"
    line = helper.__code__.co_firstlineno
    keys = "DispatchKeySet(CPU, ADInplaceOrView, AutogradCPU, AutocastCPU)"
    assert guards.text().splitlines() == [
        "GLOBAL_STATE: ___check_global_state(grad_mode=True, inference_mode=False, autocast_cpu=False, "
        "autocast_cuda=False, deterministic=False, torch_function=True, torch_function_modes=0, default_dtype=Float, "
        f"num_threads={torch.get_num_threads()})",
        f"TENSOR_MATCH: check_tensor(L['x'], Tensor, {keys}, torch.float32, device=cpu, requires_grad=False, "
        "size=[4], stride=[1])",
        f"TYPE_LOOKUP: _PyType_Lookup(<class '{where}.Model'>, 'forward') is <function test_print.<locals>.Model.forward>",
        f"TYPE_LOOKUP: _PyType_Lookup(<class '{where}.Model'>, '__getattr__') is missing",
        f"TYPE_MATCH: ___check_type_id(L['self'], <class '{where}.Model'>)",
        "NO_HASATTR: not hasattr(L['self'], 'scale')",
        "EQUALS_MATCH: L['self'].training == True",
        "LENGTH_CHECK: len(L['self']._hooks) == 0, type=<class 'collections.OrderedDict'>",
        "DICT_KEYS: list(dict.keys(L['self']._modules)) == ['0', '1'], type=<class 'dict'>",
        f"TENSOR_MATCH: check_tensor(L['self']._modules['0'].weight, Parameter, {keys}, torch.float32, device=cpu, "
        "requires_grad=True, size=[2, 3], stride=[3, 1])",
        "NO_OBJECT_ALIASING: L['x'] is not L['y']",
        "LENGTH_CHECK: len(L['xs']) == 2, type=<class 'list'>",
        "LENGTH_CHECK: len(L['xs']) > 1",
        "DICT_NOT_CONTAINS: 'absent' not in G",
        f"FUNCTION_MATCH: ___check_function(G['helper'], <code test_print.<locals>.helper, line {line}>)",
        "ID_MATCH: ___check_obj_id(torch.relu, <built-in function relu>)",
    ]


def test_a_module_of_a_hundred_layers():
    """The whole of a real module tree, guarded as a call reads it."""
    sys.path.insert(0, str(__import__("pathlib").Path(__file__).parents[2] / "bench"))
    try:
        from guards import module_guards
    finally:
        sys.path.pop(0)
    model = torch.nn.Sequential(*[m for _ in range(50) for m in (torch.nn.Linear(4, 4), torch.nn.ReLU())])
    guards = Guards(*module_guards(local(0, "self"), model))
    assert guards(model)
    assert guards(model.eval()) is False
    assert guards(model.train())
    model[98].weight = torch.nn.Parameter(torch.ones(4, 5))
    assert guards.why(model) == (
        "tensor 'L['self']._modules['98']._parameters['weight']' size mismatch at index 1. expected 4, actual 5")
    model[98].weight = torch.nn.Parameter(torch.ones(4, 4))
    assert guards(model)
    handle = model[50].register_forward_hook(lambda *a: None)
    assert guards.why(model) == "len(L['self']._modules['50']._forward_hooks) == 0: actual 1"
    handle.remove()
    assert guards(model)
    model[10] = torch.nn.ReLU()
    assert not guards(model)
