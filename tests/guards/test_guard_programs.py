"""Guard programs: what they keep alive, and how they print."""

import collections
import gc
import pathlib
import sys
import weakref

import torch
from guard_support import Guards, Plain, X, local

from magneto import _testing


def everything(holder):
    attribute = X + (("attr", "a"),)
    return [
        (X, "type", Plain),
        (attribute, "length", list, 1),
        (attribute + (("seq", 0),), "equals", "deep"),
        (X + (("attr", "d"),), "dict_keys", dict, ["k"]),
        (X + (("attr", "d"), ("item", "k")), "identity", holder.d["k"]),
        (X + (("attr", "t"),), "tensor", holder.t),
        (X + (("attr", "f"),), "function", holder.f),
        (X + (("attr", "missing"),), "absent"),
        (X + (("attr", "t"),), "distinct", X),
        (None, "type_lookup", Plain, "__init__", Plain.__init__),
        (X + (("dict",),), "require"),
        (X + (("attr", "t"), ("grad",)), "equals", None),
        (None, "global_state"),
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
    def marker():
        return 1

    alive = weakref.ref(marker)
    guards = Guards((X + (("item", "m"),), "identity", marker))
    assert guards({"m": marker})
    del marker
    gc.collect()
    assert alive() is not None
    instance = Plain()
    let_go = weakref.ref(instance)
    of_instance = Guards((X + (("item", "m"),), "identity", instance))
    assert of_instance({"m": instance})
    del instance
    gc.collect()
    assert let_go() is None  # programs notice when instances go
    assert not of_instance({"m": None}) and not of_instance({"m": Plain()})
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
    _testing.guards_bench(guards.program, roots, 10)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert _testing.guards_bench(guards.program, roots, 10_000)[1] == 10_000
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


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
        (
            self + (("attr", "_modules"), ("item", "0"), ("attr", "weight")),
            "tensor",
            torch.nn.Parameter(torch.ones(2, 3)),
        ),
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
    where = f"{__name__}.test_print.<locals>"
    line = helper.__code__.co_firstlineno
    keys = "DispatchKeySet(CPU, ADInplaceOrView, AutogradCPU, AutocastCPU)"
    assert guards.text().splitlines() == [
        (
            "GLOBAL_STATE: ___check_global_state(grad_mode=True, inference_mode=False, autocast_cpu=False, "
            "autocast_cuda=False, deterministic=False, torch_function=True, torch_function_modes=0, default_dtype=Float, "
            f"num_threads={torch.get_num_threads()})"
        ),
        (
            f"TENSOR_MATCH: check_tensor(L['x'], Tensor, {keys}, torch.float32, device=cpu, requires_grad=False, "
            "size=[4], stride=[1])"
        ),
        f"TYPE_LOOKUP: _PyType_Lookup(<class '{where}.Model'>, 'forward') is <function test_print.<locals>.Model.forward>",
        f"TYPE_LOOKUP: _PyType_Lookup(<class '{where}.Model'>, '__getattr__') is missing",
        f"TYPE_MATCH: ___check_type_id(L['self'], <class '{where}.Model'>)",
        "NO_HASATTR: not hasattr(L['self'], 'scale')",
        "EQUALS_MATCH: L['self'].training == True",
        "LENGTH_CHECK: len(L['self']._hooks) == 0, type=<class 'collections.OrderedDict'>",
        "DICT_KEYS: list(dict.keys(L['self']._modules)) == ['0', '1'], type=<class 'dict'>",
        (
            f"TENSOR_MATCH: check_tensor(L['self']._modules['0'].weight, Parameter, {keys}, torch.float32, device=cpu, "
            "requires_grad=True, size=[2, 3], stride=[3, 1])"
        ),
        "NO_OBJECT_ALIASING: L['x'] is not L['y']",
        "LENGTH_CHECK: len(L['xs']) == 2, type=<class 'list'>",
        "LENGTH_CHECK: len(L['xs']) > 1",
        "DICT_NOT_CONTAINS: 'absent' not in G",
        f"FUNCTION_MATCH: ___check_function(G['helper'], <code test_print.<locals>.helper, line {line}>)",
        "ID_MATCH: ___check_obj_id(torch.relu, <built-in function relu>)",
    ]


def test_a_module_of_a_hundred_layers():
    """The whole of a real module tree, guarded as a call reads it."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
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
        "tensor 'L['self']._modules['98']._parameters['weight']' size mismatch at index 1. expected 4, actual 5"
    )
    model[98].weight = torch.nn.Parameter(torch.ones(4, 4))
    assert guards(model)
    handle = model[50].register_forward_hook(lambda *a: None)
    assert guards.why(model) == "len(L['self']._modules['50']._forward_hooks) == 0: actual 1"
    handle.remove()
    assert guards(model)
    model[10] = torch.nn.ReLU()
    assert not guards(model)
