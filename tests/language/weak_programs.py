"""Weak references, weak dicts, and the handles of hooks, which hold their dict weakly."""

from __future__ import annotations

import weakref
from collections import OrderedDict

import torch
from programs import Programs
from torch import nn

programs = Programs()


# -- tensors -------------------------------------------------------------------------------------------------------------


@programs()
def of_a_tensor(x):
    y = x + 1
    reference, of_argument = weakref.ref(y), weakref.ref(x)
    return reference() * 2, of_argument() is x, reference() is y, weakref.ref(y) is reference, y


@programs.made()
def of_a_tensor_left_behind():
    left = []

    def program(x):
        alive = [reference() is not None for reference in left]
        y, z = x + 1, x * 2
        left[:] = [weakref.ref(x), weakref.ref(y), weakref.ref(z)]
        return y, alive

    return program


@programs(breaks=True)
def of_a_tensor_that_is_gone(x):
    def inside():
        y = x + 1
        return weakref.ref(y)

    reference = inside()
    z = x * 3
    other = weakref.ref(z)
    z = z + 1
    return x * 2, reference() is None, other() is None, z


@programs(breaks=True)
def of_a_tensor_in_a_list(x):
    y = x + 1
    kept = [y]
    reference = weakref.ref(y)
    del y
    return reference() is kept[0], kept


@programs.made(breaks=True)
def callback_of_a_tensor():
    seen = []

    def program(x):
        y = x + 1
        reference = weakref.ref(y, lambda _: seen.append("gone"))
        z = y * 2
        del y
        seen.append("after")
        return z, reference() is None

    program.watched = (seen,)
    return program


@programs.made(breaks=True)
def from_outside_and_made():
    parts = [nn.Linear(1, 1), nn.Linear(1, 1)]
    references = [weakref.ref(part) for part in parts]
    tensor = torch.ones(6)
    of_tensor = weakref.ref(tensor)

    def program(x):
        same = references[0] is weakref.ref(parts[0])
        references.reverse()
        return x, same, of_tensor is weakref.ref(tensor), weakref.ref(tensor) in [of_tensor], of_tensor() is tensor

    return program


@programs.made()
def of_what_a_variable_holds():
    """...or of what is none of the tensors made inside, whether it lives or not."""

    class Holder:
        def __init__(self):
            self.kept, self.written = torch.ones(6), torch.zeros(6)
            self.references = [weakref.ref(self.kept), weakref.ref(self.written)]

    holder = Holder()

    def program(x):
        made = holder.written = x + 1
        kept = holder.kept
        same, made_there = holder.references[0]() is kept, holder.references[1]() is made
        holder.references[1] = weakref.ref(made)
        return made * 2, same, made_there, holder.references[1]() is made

    program.watched = (holder,)
    return program


@programs.made(breaks=True)
def of_what_no_variable_holds():
    class Holder:
        def __init__(self):
            self.written = torch.zeros(6)
            self.reference = weakref.ref(self.written)

    holder = Holder()

    def program(x):
        holder.written = x + 1
        return x, holder.reference() is None

    return program


# -- containers, dicts ---------------------------------------------------------------------------------------------------


@programs.made()
def of_containers():
    outside, members = OrderedDict(a=1), {1}

    def program(x):
        weakref.ref(outside)()["b"] = 2
        reference = weakref.ref(members)
        reference().add(len(members) + 1)
        inside = OrderedDict(a=x)
        return x * len(outside), reference() is members, weakref.ref(inside)() is inside

    program.watched = (outside, members)
    return program


@programs()
def of_what_has_none(x):
    try:
        weakref.ref([x])
    except TypeError as error:
        return x + 1, str(error)
    return x


@programs.made()
def weak_keys():
    part, other = nn.Linear(1, 1), nn.Linear(2, 2)
    scales = weakref.WeakKeyDictionary({part: 2.0})

    def program(x):
        return x * scales[part] + scales.get(other, 1.0), part in scales, other in scales

    return program


@programs.made()
def weak_keys_that_are_classes():
    part = nn.Linear(1, 1)
    scales = weakref.WeakKeyDictionary({nn.Linear: 2.0, torch.Tensor: 3.0})

    def program(x):
        return x * scales[type(part)], nn.ReLU in scales, type(x) in scales, scales.get(nn.Module)

    return program


@programs.made()
def weak_values():
    parts = [nn.Identity(), nn.ReLU()]
    by_name = weakref.WeakValueDictionary(a=parts[0], b=parts[1])

    def program(x):
        gone = by_name.get("a") is None
        part = by_name["b"]
        return part(x - 3), gone, "a" in by_name, part is parts[-1]

    return program


@programs.made(breaks=True)
def weak_dicts_written():
    part = nn.Linear(1, 1)
    turns, names = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary()

    def program(x):
        turns[part] = turns.get(part, 0) + 1
        names["part"] = part
        return x * turns[part], names["part"] is part, len(names)

    return program


# -- hooks of modules ----------------------------------------------------------------------------------------------------


@programs.made()
def forward_hooks():
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    seen = {}

    def program(x):
        handles = [
            part.register_forward_hook(lambda part, args, result, name=name: seen.__setitem__(name, result * 2))
            for name, part in model.named_children()
        ]
        y = model(x - 3)
        for handle in handles:
            handle.remove()
        return y, len(model[0]._forward_hooks)

    program.watched = (seen,)
    return program


@programs.made()
def forward_hooks_in_order():
    part = nn.Identity()

    def program(x):
        last = part.register_forward_hook(lambda part, args, result: result * 2)
        first = part.register_forward_hook(
            lambda part, args, kwargs, result: result + 1, prepend=True, with_kwargs=True
        )
        with part.register_forward_pre_hook(lambda part, args: (args[0] - 3,)):
            y = part(x)
        z = part(x)
        first.remove()
        last.remove()
        return y, z, part(x) is x, last.id - first.id

    return program


@programs.made(breaks=True)
def forward_hook_around_an_exit():
    part = nn.Identity()

    def program(x):
        handle = part.register_forward_hook(lambda part, args, result: result * 2)
        size = part(x).sum().item()
        handle.remove()
        return part(x) * size

    return program


@programs.made(breaks=True)
def forward_hook_left():
    part = nn.Identity()
    handles = []

    def program(x):
        while handles:
            handles.pop().remove()
        before = part(x)
        handles.append(part.register_forward_hook(lambda part, args, result: result * 2))
        return before, part(x), len(part._forward_hooks)

    return program


class Held:
    pass


@programs.made(breaks=True)
def callbacks_in_the_order_of_the_variables():
    """A frame's variables die in their order, and a reference that is dead calls nothing."""
    calls = []

    def referent_first(x):
        held = Held()
        reference = weakref.ref(held, lambda _: calls.append("referent first"))
        return x * 2, reference() is held

    def reference_first(x):
        reference = None
        held = Held()
        reference = weakref.ref(held, lambda _: calls.append("reference first"))
        return x * 2, reference() is held

    def program(x):
        return referent_first(x), reference_first(x), list(calls)

    return program


@programs.made(breaks=True)
def a_callback_at_the_end():
    calls = []

    def program(x):
        held = Held()
        reference = weakref.ref(held, lambda _: calls.append(1))
        return x * 2, len(calls), reference() is held

    return program


# -- what writes let go of ------------------------------------------------------------------------------------------------


@programs.made(breaks=True)
def referents_dropped_outside():
    class Owner:
        def __init__(self):
            self.part = Held()

    owners = [Owner() for _ in range(9)]
    held = [[Held(), Held()] for _ in range(9)]
    parts, several = (
        weakref.WeakSet(owner.part for owner in owners),
        weakref.WeakSet(each for two in held for each in two),
    )
    first = weakref.ref(owners[0].part)

    def program(x):
        owners.pop(0).part = None
        held.pop(0).clear()
        held[0][0] = None
        return x + 1, len(parts), first() is None, len(several), sum(1 for _ in several)

    return program
