"""Containers, their order and their iterators, with what they hold changed between calls."""

import dataclasses
import functools
import operator

from scenario import Registry, v

scenario = Registry()


@scenario
def iterator_class_with_state(start):

    class It:
        def __init__(s, n):
            s.n = n
            s.i = 0

        def __iter__(s):
            return s

        def __next__(s):
            s.i += step
            if s.i > s.n:
                raise StopIteration
            return s.i

    step = 1
    it = It(4)

    def program(x):
        return (x * next(it, 9), it.i)

    c = start(program, it)
    c(v())
    c(v())
    step = 2
    c(v())
    it.i = 0
    c(v())
    start(lambda x: (x, list(It(5)), sum(It(3)), tuple(zip(It(3), It(9)))))(v())


@scenario
def unusual_setitem_targets(start):
    d = {}
    l = [1, 2, 3, 4]
    t = v()

    def program(x):
        d["k"], l[1:3], t[0] = (x.sum(), [9, 8, 7], 5.0)
        l[::2] = [0] * len(l[::2])
        del l[-1]
        a, *l[0:1], b = (1, 2, 3, 4)
        return (d, l, a, b, t)

    c = start(program, d, l, t)
    c(v())
    c(v(2))
    l.extend([1, 1])
    c(v())


@scenario
def member_that_a_set_pops(start):
    s = {3, 1, 2, 40, 17}
    d = {"a": 1, "b": 2}

    def program(x):
        return (x * s.pop(), d.popitem() if d else None, sorted(s))

    c = start(program, d)
    [c(v()) for _ in range(4)]
    s.update({5, 9})
    c(v())


@scenario
def frozenset_and_set_algebra(start):
    a = frozenset({"x", "y", "zz"})
    b = {"y", "q"}

    def program(x):
        return (
            x + len(a | b),
            list(a - b),
            list(a),
            [k for k in a ^ b],
            list(b),
            tuple(a & b),
            a <= b,
            a.isdisjoint(b),
            next(iter(a)),
        )

    c = start(program)
    c(v())
    b.add("x")
    c(v())
    b.discard("q")
    b.add("w")
    c(v())
    a = frozenset({"zz", "y", "x", "n"})
    c(v())


@scenario
def set_of_tuples_and_mixed_order(start):
    s = {(1, 2), "a", 3.5, None}

    def program(x):
        return ([k for k in s], x + len(s), list({*s, 9}), s | {1}, sorted(map(str, s)))

    c = start(program, s)
    c(v())
    s.remove("a")
    c(v())
    s.add("a")
    c(v())
    s.update(range(20))
    c(v())
    s -= set(range(20))
    c(v())


@scenario
def set_written_inside_in_order(start):
    s = {"q", "w"}

    def program(x, k):
        s.add(k)
        s.discard("w")
        s.add("w")
        s.update({"n", "m"})
        return (list(s), x + len(s))

    c = start(program, s)
    c(v(), "a")
    c(v(), "b")
    c(v(), "zz")
    s.clear()
    c(v(), "a")


@scenario
def set_made_inside_in_order(start):
    # 15 finds the place of 7 taken and goes to one in front of it; added in the order seen, 7 would.
    def program(x, k):
        made = {7, k}
        kept = made | {k + 8}
        return (list(made), x + 1, list(kept), x + len(kept))

    c = start(program)
    c(v(), 15)
    c(v(), 23)


@scenario
def set_of_tuples_made_inside_in_order(start):

    def program(x):
        s = {(i, 0) for i in range(40)}
        for i in range(37):
            s.discard((i, 0))
        return (x + 1, s, frozenset(s))

    c = start(program)
    for _ in range(2):
        for made in c(v())[1:]:
            start(lambda made: [*made])(made)


@scenario
def class_attribute_containers_shared(start):

    class A:
        items = []
        table = {}

    class B(A):
        pass

    def program(x):
        A.items.append(1)
        B.table["n"] = len(B.items)
        return (x * len(B.items), B.table is A.table)

    c = start(program, A.items, A.table)
    c(v())
    c(v())
    B.items = [9]
    c(v())
    A.items.clear()
    c(v())
    B.table = {}
    c(v())


@scenario
def slice_objects_and_index_classes(start):

    class I:
        def __init__(s, n):
            s.n = n

        def __index__(s):
            return s.n

    i = I(2)

    def program(x, l):
        return (
            x[:i] if False else x[i.n :],
            l[i],
            l[:i],
            l[i:],
            "abcdef"[i],
            range(10)[i],
            [0] * i,
            x.sum() * operator.index(i),
        )

    c = start(program)
    c(v(), [1, 2, 3, 4])
    i.n = 1
    c(v(), [1, 2, 3, 4])
    i.n = 3
    c(v(), [1, 2, 3, 4])
    I.__index__ = lambda s: 0
    c(v(), [1, 2, 3, 4])


@scenario
def dataclass_ordering_and_hash(start):

    @dataclasses.dataclass(order=True, unsafe_hash=True)
    class D:
        a: int
        b: str = "x"

    ds = [D(3), D(1, "q"), D(2)]

    def program(x):
        return (
            sorted(ds)[0].a * x,
            max(ds).a,
            D(1, "q") in ds,
            {d: i for i, d in enumerate(ds)}[D(2)],
            ds[0] == D(3),
            hash(ds[0]) == hash(D(3)),
        )

    c = start(program)
    c(v())
    ds[0].a = 0
    c(v())
    ds.append(D(9))
    c(v())
    ds[2].b = "y"
    try:
        c(v())
    except KeyError:
        pass


@scenario
def total_ordering_and_cmp_to_key(start):
    flip = 1

    @functools.total_ordering
    class T:
        def __init__(s, n):
            s.n = n

        def __eq__(s, o):
            return s.n == o.n

        def __lt__(s, o):
            return flip * s.n < flip * o.n

    ts = [T(2), T(3), T(1)]

    def program(x):
        return (
            max(ts).n * x,
            [t.n for t in sorted(ts, key=functools.cmp_to_key(lambda a, b: flip * (a.n - b.n)))],
            ts[0] >= ts[1],
        )

    c = start(program)
    c(v())
    flip = -1
    c(v())
    ts[0].n = 9
    c(v())


@scenario
def list_subclass_overrides(start):

    class L(list):
        def __getitem__(s, i):
            return super().__getitem__(i) * k

        def append(s, o):
            super().append(o + 1)

        def __len__(s):
            return 99

    k = 1
    l = L([1, 2])

    def program(x):
        l.append(3)
        return (x * l[0], sum(l), len(l), [*l], l[-1])

    c = start(program, l)
    c(v())
    k = 2
    c(v())
    L.__getitem__ = lambda s, i: 5
    c(v())


@scenario
def dict_that_iterates_in_its_own_way(start):

    class D(dict):
        def __getitem__(s, k):
            return super().__getitem__(k) + off

        def get(s, k, d=None):
            return "got"

        def __contains__(s, k):
            return True

        def keys(s):
            return ["fake"]

        def __iter__(s):
            return iter(["it"])

    off = 0
    d = D(a=1)

    def program(x):
        return (
            x * d["a"],
            d.get("a"),
            "zz" in d,
            list(d),
            d.keys(),
            list(d.values()),
            dict(d) if False else 0,
            {**d} if False else 0,
        )

    c = start(program)
    c(v())
    off = 3
    c(v())
    del D.__iter__
    c(v())
    d["b"] = 1
    c(v())


@scenario
def iterators_over_grown_lists(start):
    # An iterator made anew behind a break stood at the old length of a list that had grown in front of it.
    def program(items, x):
        items.append(1)
        once = iter(items)
        next(once)
        backwards = reversed(items)
        next(backwards)
        counted = enumerate(items)
        next(counted)
        y = x + 1
        print(end="")
        return list(once), list(backwards), list(counted), y, list(zip(items, items, strict=True))

    c = start(program)
    c([], v())
    c([0], v())
    c([5, 6, 7], v())


@scenario
def loops_over_grown_lists(start):
    def program(x):
        items = []
        x.sum().item()
        items.append(1)
        for i, _ in enumerate(items):
            x.sum().item()
        return i, x + len(items)

    c = start(program)
    c(v())
    c(v() + 1)
