"""Guards: every way to reach a value."""

import builtins
import math
import types

import pytest
import torch
from guard_support import UNBOUND, Guards, Plain, Slotted, X, bound, local, make_closure

from magneto import _testing

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
METHOD = bound()

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
    (X + (("self",),), METHOD, METHOD.__self__, "L['x'].__self__"),
    (X + (("func",),), METHOD, METHOD.__func__, "L['x'].__func__"),
    (X + (("grad",),), LEAF, LEAF.grad, "L['x'].grad"),
    (X + (("grad",),), torch.ones(1), None, "L['x'].grad"),
]


@pytest.mark.parametrize("path, root, value, name", SOURCES, ids=[row[3] for row in SOURCES])
def test_source_loads_and_prints(path, root, value, name):
    guards = Guards((path, "require"))
    assert guards.values(root)[0] is value
    assert guards.values(root)[0] is value  # and once more from memory
    assert _testing.guards_names([path]) == [(name, len(path) - 1)]
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
        (
            (*local(0, "self"), ("attr", "_modules"), ("item", "0"), ("attr", "weight"))
        ): "L['self']._modules['0'].weight",
    }
    assert [name for name, _ in _testing.guards_names(list(paths))] == list(paths.values())
    assert _testing.guards_names([(globals_dict, ("item", "np"))])[0][0] == "G['np']"
    assert _testing.guards_names([(("const", vars(builtins)), ("item", "len"))])[0][0] == "__builtins__['len']"


def test_equal_paths_are_one_source():
    key = str(b"ab", "ascii")  # another object
    paths = [
        X + (("item", "ab"),),
        X + (("item", key),),
        X + (("item", 1),),
        X + (("item", True),),
        X + (("item", 1.0),),
        X + (("item", 0.0),),
        X + (("item", -0.0),),
        X + (("item", (1, 2)),),
        X + (("item", tuple(range(1, 3))),),
    ]
    assert [number for _, number in _testing.guards_names(paths)] == [1, 1, 2, 3, 4, 5, 6, 7, 7]


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
    with pytest.raises(ValueError, match="computed by its class"):
        Guards((X, "tensor", torch.ones(2, 2).to_sparse()))


@pytest.mark.parametrize(
    "step, wrong",
    [
        (("item", "k"), [1]),
        (("seq", 0), {0: 1}),
        (("cell",), 1),
        (("self",), 1),
        (("func",), len),
        (("grad",), 1),
        (("closure", 0, "c"), len),
    ],
)
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
