"""Instances of subclasses of list, dict and their like, made outside, that C code changes."""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from programs import Programs

programs = Programs()


class Items(list):
    pass


class Table(dict):
    pass


class Ordered(OrderedDict):
    pass


class Counts(Counter):
    pass


class Defaults(defaultdict):
    pass


class Queue(deque):
    pass


class Members(set):
    pass


class Shown(list):
    def __repr__(self):
        return "shown"


class Doubling(list):
    def append(self, item):
        super().append(item * 2)


class Adding(list):
    def __add__(self, other):
        return "added"


class Sized(list):
    def __len__(self):
        return 7


class Missing(dict):
    def __missing__(self, key):
        return len(key)


class Raising(OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)


class Recent(OrderedDict):
    def put(self, key, value, limit):
        if key in self:
            self.move_to_end(key)
        self[key] = value
        if len(self) > limit:
            self.popitem(last=False)


def moved(table: Any) -> Any:
    table.move_to_end("a")
    return table


def of(make: Callable[[], Any], breaks: bool = False) -> Any:
    """A program of a vector and a container that `make` makes outside."""

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        def made() -> Callable[..., Any]:
            container = make()

            def program(x):
                return body(x, container)

            program.watched = (container,)
            return program

        programs.add(body.__name__, made, (), breaks)
        return body

    return register


# -- lists ---------------------------------------------------------------------------------------------------------------


@of(lambda: Items([3, 1, 2]))
def list_methods(x, items):
    items.append(len(items))
    items.sort()
    items.insert(0, 9)
    items.reverse()
    items.extend([1, 2])
    items.remove(9)
    return x * items[-1] + items.pop(), items.index(1), items.count(2)


@of(lambda: Items([3, 1, 2]))
def list_operators(x, items):
    items += [4]
    items *= 2
    del items[0]
    items[0] = 5
    items[2:4] = [7]
    return x * items[-1], items + [1], 7 in items, items == [5, 2], items[1:3]


@of(lambda: Items([1, 2]))
def list_read_when_changed(x, items):
    items.append(3)
    first, *rest = items
    return x * sum(items), list(items), first, rest, [*map(bool, items)], max(items), bool(items), type(items)


@of(lambda: Items([1, 2]))
def list_iterator_and_a_change(x, items):
    iterator = iter(items)
    next(iterator)
    items.append(9)
    return x, list(iterator)


@of(lambda: Items([1, 3, 5]))
def list_in_c_functions(x, items):
    heapq.heappush(items, 2)
    smallest = heapq.heappop(items)
    items.sort()
    bisect.insort(items, 4)
    return x * smallest, bisect.bisect_left(items, 4)


@of(lambda: Items([torch.ones(6)]))
def list_of_tensors(x, items):
    items.append(x * 2)
    items[0] = items[0] + x
    return torch.stack(items)


@of(lambda: [Items([1]), Table(a=1)])
def subclasses_in_containers(x, both):
    items, table = both
    items.append(2)
    table.update(b=1)
    kept = [items]
    kept.append(table)
    table["items"] = items
    return x, type(kept[0]), type(kept[1]), type(table["items"]), table.pop("items") is items, kept


@of(lambda: Items([1, 2]), breaks=True)
def list_changed_around_an_exit(x, items):
    items.append(3)
    items.append(int(x.sum().item()))
    items[0] += 1
    return x * items[0], len(items)


@of(lambda: Items([1, 2]))
def list_changed_when_an_error_is_caught(x, items):
    items.append(3)
    try:
        items.remove(99)
    except ValueError:
        items.pop(0)
    return x * items[0], len(items)


# -- methods of the class ------------------------------------------------------------------------------------------------


@of(lambda: Doubling([1]))
def own_append(x, items):
    items.append(3)
    items.extend([1])
    return x * items[1]


@of(lambda: Sized([1]))
def own_length(x, items):
    items.append(2)
    return x, len(items), bool(items)


@of(lambda: Shown([1]), breaks=True)
def own_text(x, items):
    items.append(2)
    return x, repr(items), f"{items}", str([items])


@of(lambda: Adding([1]), breaks=True)
def own_addition(x, items):
    items.append(2)
    other = items
    other += [3]
    return x, other, items + [1]


@of(lambda: Missing(a=1))
def own_missing(x, table):
    table.update(b=2)
    table.pop("a", None)
    return x * table["three"], "three" in table, table.get("three"), table["b"]


@of(lambda: Raising(a=1), breaks=True)
def own_writes_that_c_code_calls(x, table):
    table.update(b=2)
    table.setdefault("c", 3)
    return x, list(table.items())


@of(lambda: Raising(a=1))
def own_writes(x, table):
    table["b"] = 2
    del table["a"]
    inside = Raising(c=1)
    inside["d"] = x
    return x, list(table.items()), inside


# -- dicts ---------------------------------------------------------------------------------------------------------------


@of(lambda: Table(a=1, b=2))
def dict_methods(x, table):
    table.update(c=3)
    table.setdefault("d", 5)
    table["z"] = table.pop("a", 0)
    table |= {"q": 4}
    last = table.popitem()
    return x * table["q"] if "q" in table else x * table["z"], last, len(table), dict(table), {**table}


@of(lambda: Table(a=1))
def dict_views_and_a_change(x, table):
    keys = table.keys()
    table.update(b=2)
    return x, list(keys), len(keys), list(table.items()), table == {"a": 1, "b": 2}


@of(lambda: Table(a=1), breaks=True)
def dict_text_when_written(x, table):
    table["b"] = 2
    return x, repr(table), str([table])


@of(lambda: Table(a=1))
def dict_that_grows_under_a_loop(x, table):
    try:
        for key in table:
            table.update({key + "x": 1})
    except RuntimeError as error:
        return x, str(error), len(table)


@of(lambda: Ordered(a=1, b=2))
def ordered_methods(x, table):
    table.move_to_end("a")
    table["c"] = 3
    table |= {"d": 4}
    table.popitem(last=False)
    return x * next(iter(table.values())), list(table)


@of(lambda: moved(Ordered(a=1, b=2, c=3)))
def ordered_in_its_own_order(x, table):
    return x * next(iter(table.values())), [*table], dict(table), list(table.items())


@of(Recent)
def ordered_as_a_cache(x, table):
    for key in "abac":
        table.put(key, x.sum(), 2)
    return x, list(table)


@of(lambda: Defaults(list))
def defaults_of_a_subclass(x, table):
    table["a"].append(1)
    table["b"].append(x)
    return x * len(table["a"]), table.get("c")


# -- counters, sets, deques ------------------------------------------------------------------------------------------------


@of(lambda: Counter("abca"))
def counter_updates(x, counts):
    counts.update("aab")
    counts.subtract("c")
    counts["new"] += 1
    del counts["none"]
    return x * counts["a"], counts.most_common(1), counts["none"], counts.total()


@of(lambda: Counts("ab"), breaks=True)
def counter_operators_when_changed(x, counts):
    counts.update("a")
    counts += Counter("z")
    return x, counts + Counter("a"), +counts, counts == Counter("aabz"), repr(counts)


@of(lambda: Members([1, 2]))
def set_of_a_subclass(x, members):
    members.add(3)
    members |= {4}
    members.discard(1)
    return x, len(members), sorted(members), type(members)


class Names(frozenset):
    def has(self, name):
        return name in self


class Noting(set):
    def __init__(self, items=()):
        super().__init__(items)
        self.notes = []

    def add(self, item):
        self.notes.append(item)
        super().add(item)


class Ring(deque):
    def mean(self):
        return sum(self) / len(self)


class Reversed(set):
    def __iter__(self):
        return iter(sorted(super().__iter__(), reverse=True))


@of(lambda: Names(["q", "v"]))
def frozen_set_of_a_subclass(x, names):
    for name in "qkv":
        if names.has(name):
            x = x * 2
    joined, met = names | {"k"}, names & {"k", "q"}
    return x, len(names), sorted(names), type(joined), met, names == {"q", "v"}, names <= joined, list(names)


@of(lambda: Noting([1, 2]))
def set_with_methods(x, members):
    members.add(2)
    members.add(5)
    members.update([7])
    popped = 7 in members
    members -= {1}
    return x * len(members), members.notes, popped, members, {*members}, set(members), max(members)


@of(lambda: Noting(["a"]), breaks=True)
def set_around_an_exit(x, members):
    members.add("b")
    size = x.sum().item()
    members.remove("a")
    return x * size, sorted(members), repr(members)


@of(lambda: Members("ab"), breaks=True)
def set_that_is_copied(x, members):
    return x, type(members.copy()), members.copy(), repr(members), str(members)


@of(lambda: Reversed([1, 2, 3]), breaks=True)
def set_that_iterates_in_its_own_way(x, members):
    return x, list(members), sum(members), 2 in members


@of(lambda: (Members([1]), Noting([1]), Members()))
def sets_told_apart(x, members):
    first, second, empty = members
    first.add(2)
    return x, first == second, first is not second, bool(empty), second.issubset(first), first.isdisjoint(empty)


@programs()
def sets_made_inside(x):
    made, names = Noting([3]), Names("ab")
    made.add(4)
    return x * len(made), made, names, names.has("a"), type(made | {1}), made.notes


@of(lambda: Queue([1, 2], 3))
def deque_of_a_subclass(x, queue):
    queue += [3]
    queue.appendleft(0)
    queue.rotate(1)
    return x * queue[0], list(queue), queue.maxlen, 3 in queue, queue == Queue([2, 0, 1]), queue[-1]


@programs.made()
def ring_of_tensors():
    ring = Ring(maxlen=2)

    def program(x):
        ring.append(x.sum())
        return x - ring.mean(), len(ring)

    program.watched = (ring,)
    return program


@programs()
def deque_made_inside(x):
    ring = Ring([x, x + 1], maxlen=2)
    ring.append(x + 2)
    ring.label = "ring"
    return ring.mean(), ring, ring.maxlen


@of(lambda: Ring([1.0, 2.0], 3), breaks=True)
def deque_that_is_copied(x, ring):
    ring.append(3.0)
    return x, type(ring.copy()), type(ring + ring), ring * 2, repr(ring)


@of(lambda: Ring([1.0, 2.0], 3), breaks=True)
def deque_around_an_exit(x, ring):
    ring.append(x.sum().item())
    return x * ring.mean(), ring


@of(lambda: (Members([1]), Ring([2]), Items([torch.ones(6)])))
def given_to_others(x, given):
    members, ring, items = given
    return (
        x,
        [*members],
        list(ring),
        deque(items)[0] + x,
        set(ring),
        tuple(sorted(members)),
        Ring(members),
        Noting(ring),
    )


@of(lambda: (Items([1]), Members([2])))
def kept_as_they_are(x, given):
    """By exceptions, partial functions and the like, which C code makes."""
    items, members = given
    try:
        raise ValueError(items, members)
    except ValueError as error:
        kept = [type(arg) for arg in error.args]
        same = error.args[0] is items
    bound = functools.partial(sorted, members)
    return x, kept, same, type(bound.args[0]), type(next(itertools.repeat(items))), bound(), slice(items).stop is items
