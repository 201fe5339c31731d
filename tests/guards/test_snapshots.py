"""A passed check is remembered as the words of memory that it read: each change of them is noticed, none is trusted."""

import time
from collections import OrderedDict

import pytest
import torch
from guard_support import Guards, Plain, Slotted, X, bound, local, make_closure

from magneto import _testing


def attr(*names):
    return X + tuple(("attr", name) for name in names)


class Other:
    pass


def asked(guards, *values):
    """Without `explain`, which drops the snapshot; three times, so that the snapshot answers."""
    answers = {_testing.guards_check(guards.program, (None, values, ())) is not None for _ in range(3)}
    assert len(answers) == 1
    return answers.pop()


def test_each_word_is_compared():
    inner, set_captured, _ = make_closure()
    slotted, method = Slotted(), bound()
    slotted.a = Plain(n=1)
    holder = Plain(
        child=Plain(n=1), items=[1000, "text"], table=OrderedDict(a=1, b=2), pair=(1, [2]), f=inner, s=slotted, m=method
    )
    descriptor = Slotted.__dict__["a"]
    guards = Guards(
        (X, "type", Plain),
        (attr("child"), "type", Plain),
        (attr("child", "n"), "equals", 1),
        (attr("items"), "length", list, 2),
        (attr("items") + (("seq", 0),), "equals", 1000),
        (attr("items") + (("seq", 1),), "equals", "text"),
        (attr("table"), "dict_keys", OrderedDict, ["a", "b"]),
        (attr("pair"), "length", tuple, 2),
        (attr("pair") + (("seq", 1),), "length", list, 1),
        (attr("f"), "function", inner),
        (attr("f") + (("closure", 0, "captured"),), "length", list, 1),
        (attr("s") + (("slot", descriptor),), "type", Plain),
        (attr("s") + (("slot", descriptor), ("attr", "n")), "equals", 1),
        (attr("m") + (("self",),), "type", type(method.__self__)),
        (attr("missing"), "absent"),
    )
    first, pair, table = holder.child, holder.pair, holder.table
    changes = [
        (lambda: setattr(holder, "__class__", Other), lambda: setattr(holder, "__class__", Plain)),
        (lambda: setattr(holder.child, "__class__", Other), lambda: setattr(holder.child, "__class__", Plain)),
        (lambda: setattr(holder.child, "n", 2), lambda: setattr(holder.child, "n", 1)),
        (lambda: setattr(holder.child, "__dict__", {"n": 2}), lambda: setattr(holder.child, "__dict__", {"n": 1})),
        (lambda: setattr(holder, "child", Plain(n=2)), lambda: setattr(holder, "child", first)),
        (lambda: holder.items.append(3), lambda: holder.items.pop()),
        (lambda: holder.items.__setitem__(0, 1001), lambda: holder.items.__setitem__(0, int("1000"))),
        (lambda: holder.items.__setitem__(1, "other"), lambda: holder.items.__setitem__(1, "".join(["te", "xt"]))),
        (lambda: table.move_to_end("a"), lambda: table.move_to_end("b")),
        (lambda: table.__setitem__("c", 1), lambda: table.__delitem__("c")),
        (lambda: pair[1].append(1), lambda: pair[1].pop()),
        (lambda: set_captured([1, 2]), lambda: set_captured([1])),
        (lambda: setattr(inner, "__defaults__", (1,)), lambda: setattr(inner, "__defaults__", None)),
        (lambda: setattr(slotted, "a", Other()), lambda: setattr(slotted, "a", Plain(n=1))),
        (lambda: setattr(slotted.a, "n", 5), lambda: setattr(slotted.a, "n", 1)),
        (lambda: setattr(holder, "m", bound()), lambda: setattr(holder, "m", method)),
        (lambda: setattr(holder, "missing", 1), lambda: delattr(holder, "missing")),
    ]
    for _ in range(5):  # more often than what changes stays in a snapshot
        for number, (change, undo) in enumerate(changes):
            assert asked(guards, holder), number
            change()
            assert not asked(guards, holder), number
            undo()
    assert asked(guards, holder)


def changed_tensor(change):
    def made():
        module = torch.nn.Linear(3, 3)
        change(module.weight)
        return module

    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.requires_grad_(False),
        lambda p: setattr(p, "data", torch.ones(3, 4)),
        lambda p: setattr(p, "data", torch.ones(3, 6)[:, ::2]),
        lambda p: setattr(p, "data", torch.ones(3, 3, dtype=torch.float64)),
        lambda p: p.t_(),
        lambda p: setattr(p, "__class__", torch.Tensor),
        lambda p: torch.utils.swap_tensors(p, torch.nn.Parameter(torch.ones(2, 2))),
        lambda p: setattr(p, "data", torch.ones((), dtype=torch.float32)),
    ],
    ids=range(8),
)
def test_each_tensor_is_compared(change):
    module = torch.nn.Linear(3, 3)
    path = attr("_parameters") + (("item", "weight"),)
    guards = Guards((X, "type", torch.nn.Linear), (path, "tensor", module.weight))
    assert asked(guards, module)
    with torch.no_grad():
        change(module.weight)
    assert not asked(guards, module)
    assert _testing.guards_explain(guards.program, (None, (module,), ()))


def test_what_was_freed_is_not_read():
    """A remembered address may be another object's by now: whatever is there, the answer is that of a full check."""
    holder = Plain(children=[Plain(child=Plain(n=i)) for i in range(50)])
    paths = [attr("children") + (("seq", i), ("attr", "child"), ("attr", "n")) for i in range(50)]
    guards = Guards(*((path, "equals", i) for i, path in enumerate(paths)))
    for turn in range(20):
        assert asked(guards, holder)
        wrong = turn % 3 == 1
        holder.children = None
        junk = [[float(i)] * 7 for i in range(turn * 10)]
        holder.children = [Plain(child=Plain(n=i + (wrong and i == 30))) for i in range(50)]
        assert asked(guards, holder) is not wrong
        del junk
        if wrong:
            holder.children[30].child.n = 30


def test_other_arguments_of_the_same_kind():
    models = [Plain(layers=[Plain(n=1), Plain(n=2)]) for _ in range(3)]
    guards = Guards(
        *((attr("layers") + (("seq", i), ("attr", "n")), "equals", i + 1) for i in range(2)),
        (local(1, "y"), "length", tuple, 2),
    )
    for turn in range(12):
        model = models[turn % 3]
        assert guards.values(model, (turn, 1))[0] is model.layers[0].n
        model.layers[1].n = 3
        assert guards.values(model, (turn, 1)) is None
        model.layers[1].n = 2
        assert guards.values(model, (turn,)) is None


def test_values_follow_what_moves():
    holder = Plain(count=0, child=Plain(n=1))
    guards = Guards((attr("count"), "require"), (attr("child", "n"), "equals", 1))
    for turn in range(10):
        holder.count = turn + 1000
        assert guards.values(holder) == (turn + 1000, 1)
        assert guards.values(holder) == (turn + 1000, 1)


def test_distinct_objects_with_one_that_moves():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(5)]
    holder = Plain(parameters=parameters)
    paths = [attr("parameters") + (("seq", i),) for i in range(5)]
    given = local(1, "y")
    tensor = torch.ones(2)
    guards = Guards(
        *((path, "tensor", parameters[0]) for path in paths),
        (given, "require"),
        (None, "all_distinct", [*paths, given]),
    )
    for turn in range(10):
        assert asked(guards, holder, torch.ones(2))
        assert not asked(guards, holder, parameters[turn % 5])
        assert asked(guards, holder, tensor)
        parameters[0], first = parameters[1], parameters[0]
        assert not asked(guards, holder, tensor)
        parameters[0] = first


def test_a_failure_deep_inside_comes_and_goes():
    """What failed last is tried first: what it loads must not stay behind as what a snapshot answers with."""
    box = [Plain(n=1), Plain(n=1)]
    good, bad = box[1], Plain(n=2)
    holder = Plain(box=box, other=[5])
    item = attr("box") + (("seq", 1),)
    guards = Guards(
        (item + (("attr", "n"),), "equals", 1), (item, "require"), (attr("other") + (("seq", 0),), "equals", 5)
    )
    for turn in range(60):
        box[1] = bad
        assert guards.values(holder) is None
        holder.other[0] = 5 + turn % 2
        box[1] = good
        values = guards.values(holder)
        assert (values is None) == bool(turn % 2)
        assert values is None or values[1] is good
        holder.other[0] = 5


def test_entries_called_in_turn_keep_their_snapshots():
    """An argument that comes in a tuple made for the call, and fits every other time: the rest is not checked anew."""
    parts = [Plain(n=i, inner=Plain(n=i)) for i in range(500)]
    holder, good, bad = Plain(parts=parts), torch.ones(2), torch.ones(3)
    items = [attr("parts") + (("seq", i),) for i in range(500)]
    guards = Guards(
        (local(1, "args") + (("seq", 0),), "tensor", good),
        *((item + (("attr", "n"),), "equals", i) for i, item in enumerate(items)),
        *((item + (("attr", "inner"), ("attr", "n")), "equals", i) for i, item in enumerate(items)),
    )

    def least(*calls):
        times = []
        for _ in range(300):
            start = time.perf_counter()
            answers = [_testing.guards_check(guards.program, (None, (holder, (x,)), ())) is not None for x in calls]
            times.append(time.perf_counter() - start)
            assert answers == [x is good for x in calls]
        return min(times)

    def least_without():
        times = []
        for _ in range(50):
            _testing.guards_explain(guards.program, (None, (holder, (good,)), ()))
            start = time.perf_counter()
            _testing.guards_check(guards.program, (None, (holder, (good,)), ()))
            times.append(time.perf_counter() - start)
        return min(times)

    assert least(bad, good) - least(good) < least_without() / 2
