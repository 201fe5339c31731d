"""C code calls functions and methods of the program's own containers, which are changed between calls."""

import bisect
import collections
import contextlib
import functools
import heapq
import itertools
import operator
import re
import types

from scenario import Registry, v

scenario = Registry()


def raised(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error)


def grow(items):
    for item in items:
        if len(items) < 8:
            items.append(item)
    return len(items)


def calls(name, run, make=lambda: [3, 1, 2]):
    """`run` gets a container from outside, which changes between calls, and one that the program makes."""

    def scenario_of(start):
        held = make()

        def program(x):
            result = run(held)
            return x * len(held), result

        c = start(program, held)
        c(v())
        c(v())
        if isinstance(held, list):
            held.append(7)
        elif isinstance(held, dict):
            held["q"] = 7
        c(v())
        c(v())

        def makes_its_own(x):
            own = make()
            result = run(own)
            return x * len(own), own, result

        c = start(makes_its_own)
        c(v())
        c(v())

    scenario_of.__name__ = name
    scenario(scenario_of)


calls("operator_call", lambda l: operator.call(l.append, 1))
calls("operator_call_of_a_descriptor", lambda l: operator.call(list.append, l, 1))
calls("methodcaller", lambda l: operator.methodcaller("append", 1)(l))
calls("reduce_iadd", lambda l: functools.reduce(operator.iadd, [[1], [2]], l))
calls("map_append", lambda l: list(map(l.append, [1, 2])))
calls("any_map", lambda l: any(map(l.append, [1, 2])))
calls("filter_append", lambda l: list(filter(l.append, [1, 2])))
calls("starmap_setitem", lambda l: list(itertools.starmap(operator.setitem, [(l, 0, 9)])))
calls("partial_of_a_method", lambda l: functools.partial(l.append)(1))
calls("partial_with_arguments", lambda l: functools.partial(l.insert, 0)(1))
calls("deque_map", lambda l: collections.deque(map(l.append, [4]), 0))
calls("sorted_key", lambda l: sorted([3, 4], key=lambda q: l.append(q) or q))
calls("sorted_key2", lambda l: sorted([1, 2, 3], key=l.index))
calls("max_key", lambda l: max([0, 1], key=l.__getitem__))
calls("default_factory_that_pops", lambda l: collections.defaultdict(l.pop)["a"])
calls("default_factory_that_asks", lambda l: (lambda d: (d["a"], d["b"], dict(d)))(collections.defaultdict(l.__len__)))
calls("iter_with_a_sentinel", lambda l: list(iter(l.pop, 1)))
calls("next_of_iter_with_a_sentinel", lambda l: next(iter(l.pop, 99)))
calls("sub_with_a_function", lambda l: re.sub("a", lambda m: l.append(1) or "b", "aa"))
calls("sub_of_a_pattern", lambda l: re.compile("a").sub(lambda m: str(l.pop()), "a"))
calls("setdefault", lambda d: list(map(d.setdefault, "ab", [1, 2])), lambda: {"a": 5})
calls("sorted_setdefault", lambda d: sorted("zab", key=lambda k: d.setdefault(k, len(d))), lambda: {"a": 5})
calls("sorted_setdefault2", lambda d: sorted(["z", "a"], key=d.setdefault), lambda: {"z": "1", "a": "0"})
calls("popitem", lambda d: d.popitem() if d else None, lambda: {"z": 1, "a": 0})
calls("cmp_to_key_with_effects", lambda l: sorted([3, 1], key=functools.cmp_to_key(lambda a, b: l.append(a) or a - b)))
calls("sort_by_cmp_to_key", lambda l: l.sort(key=functools.cmp_to_key(lambda a, b: b - a)))
calls("sortkey_self", lambda l: l.sort(key=lambda q: len(l)))
calls("extend_gen", lambda l: l.extend(q * 2 for q in list(l)))
calls("extend_self", lambda l: l.extend(l) if len(l) < 40 else None)
calls("slice_self", lambda l: l.__setitem__(slice(0, 1), l[:2]))
calls("insort", lambda l: bisect.insort(l, 2, key=lambda q: q))
calls("heapify", lambda l: (heapq.heapify(l), heapq.heappushpop(l, 0)))
calls("nsmallest", lambda l: heapq.nsmallest(2, l, key=lambda q: -q))
calls("merge", lambda l: list(heapq.merge(l, [5], key=lambda q: q)))
calls("accumulate_that_asks", lambda l: list(itertools.accumulate(l, lambda a, b: l.count(b) + a)))
calls("accumulate_that_appends", lambda l: list(itertools.accumulate([1, 2], lambda a, b: l.append(b) or b)))
calls("groupby", lambda l: [(k, list(g)) for k, g in itertools.groupby([1, 2], key=lambda q: l.append(q))])
calls("takewhile", lambda l: list(itertools.takewhile(lambda q: l.append(q) or q < 2, [1, 2, 3])))
calls("zip_gen", lambda l: list(zip((l.append(i) for i in range(2)), "ab")))
calls("join_gen", lambda l: ",".join(str(l.append(i)) for i in range(2)))
calls("sum_gen", lambda l: sum(l.append(i) or i for i in range(2)))
calls("dict_gen", lambda l: dict((i, l.append(i)) for i in range(2)))
calls("set_gen", lambda l: {*(l.append(i) for i in range(2))})
calls("unpack_gen", lambda l: (lambda *a: a)(*(l.append(i) for i in range(2))))
calls("max_gen", lambda l: max((l.append(i) or i for i in range(3)), key=lambda q: l.append(q) or -q, default=3))
calls("all_gen", lambda l: all(l.append(i) or i for i in range(3)))
calls("in_gen", lambda l: 1 in (l.append(i) or i for i in range(3)))
calls("tuple_gen", lambda l: tuple(l.append(i) for i in range(3)))
calls("enumerate_gen", lambda l: [i for i in enumerate(l.append(i) for i in range(2))])
calls("reversed_l", lambda l: [l.append(q) for q in list(reversed(l))][:1])
calls("islice", lambda l: list(itertools.islice((l.append(i) for i in range(5)), 2)))
calls("count_elems", lambda l: collections.Counter(l.append(i) for i in range(2)))
calls("exit_stack_callback", lambda l: contextlib.ExitStack().__enter__().callback(l.append, 1)(5))
calls("while_pop", lambda l: [l.pop() for _ in range(min(2, len(l)))])
calls("dict_update_self", lambda d: d.update({k + "_": d[k] for k in list(d)[:1]}), lambda: {"a": 5})
calls("dict_iter_change", lambda d: [d.__setitem__(k, 1) for k in d], lambda: {"a": 5, "b": 2})
calls("dict_grow_iter", lambda d: raised(lambda: [d.__setitem__(k + "x", 1) for k in d]), lambda: {"a": 5, "b": 2})
calls("list_grow_iter", lambda l: grow(l))
calls("operator_attr", lambda l: operator.attrgetter("__len__")(l)())
calls("getattr_call", lambda l: getattr(l, "app" + "end")(4))
calls("vars_bound", lambda l: (lambda f: (f(1), f(2)))(l.append))
calls("map_two", lambda l: list(map(lambda a, b: l.append(a) or b, [1], [2])))
calls("methodtype", lambda l: types.MethodType(lambda s, q: s.append(q), l)(3))
calls("dictviews", lambda d: (lambda k: (d.__setitem__("n", len(k)), list(k)))(d.keys()), lambda: {"a": 1})
calls("set_that_pops", lambda s: (s.add(len(s)), s & {1}, s.pop(), s.__ior__({9})), lambda: {1, 2})
