"""Guards: what classes, functions and the process say of themselves."""

import abc
import enum
import inspect
import sys
import types

import pytest
import torch
from guard_support import Guards, Plain, X


def test_bases():
    class A: ...

    class B: ...

    class C(A): ...

    guards = Guards((None, "bases", C))
    assert guards()
    C.__bases__ = (B,)
    assert not guards() and "C" in guards.why()
    again = Guards((None, "bases", C))
    C.other = 1  # no base
    assert again()
    C.__bases__ = (A,)
    assert not again()


def test_abstract_registrations():
    class A(abc.ABC):  # noqa: B024
        ...

    class B: ...

    guards = Guards((None, "abc_registrations"))
    assert guards()
    A.register(B)
    assert not guards() and guards.why()
    assert Guards((None, "abc_registrations"))()


def test_state_of_the_process():
    limit = sys.getrecursionlimit()
    guards = Guards((None, "state", sys.getrecursionlimit, [], limit))
    assert guards()
    try:
        sys.setrecursionlimit(limit + 1)
        assert not guards() and "getrecursionlimit" in guards.why()
    finally:
        sys.setrecursionlimit(limit)
    assert guards()


@pytest.mark.parametrize(
    ("getter", "switch"),
    [
        (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
        (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
        (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
        (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    ],
)
def test_switches_of_torch(getter, switch):
    before = getter()
    guards = Guards((None, "state", getter, [], before))
    assert guards()
    try:
        switch(not before)
        assert not guards()
    finally:
        switch(before)
    assert guards()


def test_state_that_takes_arguments():
    guards = Guards((None, "state", torch._C._get_fp32_precision_getter, ["cuda", "matmul"], "none"))
    assert guards() == (torch._C._get_fp32_precision_getter("cuda", "matmul") == "none")


def function_with_facts():
    captured = 1

    def f(a, b=2, *, c=3) -> int:
        """text"""
        return captured

    return f


FACTS = [("__doc__", "other"), ("__module__", "elsewhere"), ("__doc__", None)]  # from 3.14 on C code answers for them


@pytest.mark.parametrize(
    ("fact", "value"),
    [(fact, value) for fact, value in FACTS if inspect.ismemberdescriptor(types.FunctionType.__dict__[fact])],
    ids=str,
)
def test_facts_in_the_fields_of_a_function(fact, value):
    f = function_with_facts()
    path = X + (("slot", types.FunctionType.__dict__[fact]),)
    guards = Guards((path, "equals", getattr(f, fact)))
    assert guards(f)
    before = getattr(f, fact)
    setattr(f, fact, value)
    assert not guards(f)
    setattr(f, fact, before)
    assert guards(f)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("__code__", function_with_facts().__code__.replace(co_name="g")),
        ("__defaults__", (4,)),
        ("__kwdefaults__", {"c": 4}),
    ],
    ids=["code", "defaults", "kwdefaults"],
)
def test_a_function_is_its_code_and_its_defaults(fact, value):
    f = function_with_facts()
    guards = Guards((X, "function", f))
    assert guards(f)
    before = getattr(f, fact)
    setattr(f, fact, value)
    assert not guards(f)
    setattr(f, fact, before)
    assert guards(f)


def test_a_cell_that_is_written_and_emptied():
    f = function_with_facts()
    (cell,) = f.__closure__
    guards = Guards((X + (("closure", 0, "captured"),), "equals", 1))
    assert guards(f)
    cell.cell_contents = 2
    assert not guards(f)
    del cell.cell_contents
    assert not guards(f)
    cell.cell_contents = 1
    assert guards(f)


@pytest.mark.parametrize("name", ["__index__", "__hash__", "__eq__", "__len__", "__bool__", "__format__"])
def test_special_methods_that_c_code_finds(name):
    class K: ...

    missing = Guards(
        (None, "type_lookup", K, name, getattr(object, name))
        if hasattr(object, name)
        else (None, "type_lookup_missing", K, name)
    )
    assert missing()
    setattr(K, name, lambda *args: 1)
    assert not missing() and missing.why()
    found = Guards((None, "type_lookup", K, name, K.__dict__[name]))
    assert found()
    setattr(K, name, lambda *args: 1)
    assert not found()
    delattr(K, name)
    assert missing() and not found()


def test_methods_of_tensors_that_are_replaced():
    plain = torch.Tensor.__dict__.get("new_zeros", torch._C.TensorBase.__dict__["new_zeros"])
    guards = Guards((None, "type_lookup", torch.Tensor, "new_zeros", plain))
    assert guards()
    torch.Tensor.new_zeros = lambda *args: 1
    try:
        assert not guards()
    finally:
        del torch.Tensor.new_zeros
    assert guards()


def test_functions_of_a_namespace_that_are_replaced():
    space = types.ModuleType("space")
    space.f = function = function_with_facts()
    guards = Guards(((("const", vars(space)), ("item", "f")), "identity", function))
    assert guards()
    space.f = function_with_facts()
    assert not guards()
    del space.f
    assert not guards()
    space.f = function
    assert guards()


def test_sets_of_objects():
    one, two = Plain(), Plain()

    class Color(enum.Enum):
        RED = 1

    items = {one, Color.RED, int, "text", 3}
    guards = Guards((X, "equals", items))
    assert guards(items)
    items.discard(one)
    assert not guards(items)
    items.add(two)
    assert not guards(items)
    items.discard(two)
    assert not guards(items)
