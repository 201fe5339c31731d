"""C code that reads containers from outside, all the way down, or calls functions back: another inner value, another result."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import inspect
import itertools
import operator
from typing import Any

import torch
from programs import Programs, vector

programs = Programs()


def each(*values: Any) -> Any:
    return tuple((lambda value=value: (vector(), copy.deepcopy(value))) for value in values)


LISTS = each([[1, 2], [3]], [[1, 5], [3]], [[1, 2], [4]], [[1, 2], [3, 0]], [[1, 2], [3]])
PAIRS = each([(1, 2), (3, 4)], [(1, 5), (3, 4)], [(1, 2), (3, 4)])
TABLES = each({"a": [1], "b": [2]}, {"a": [1], "b": [3]}, {"a": [0], "b": []})
FLAT = each([3, 1, 2], [3, 1, 4], [3, 1, 2])
WORDS = each(["a", "bc"], ["a", "b"], ["a", "bc"])


# -- text -------------------------------------------------------------------------------------------------------------------


@programs(*LISTS)
def text_of_a_nested_list(x, v):
    return x, str(v)


@programs(*LISTS)
def representation_in_a_fresh_tuple(x, v):
    return x, repr((v, 1))


@programs(*LISTS)
def formatted_in_an_f_string(x, v):
    return x + 1, f"{v}"


@programs(*LISTS)
def formatted_with_percent(x, v):
    return x, "%s" % (v,), "%s" % v[:1]


@programs(*LISTS)
def text_of_a_fresh_list_around_it(x, v):
    return x, str([v[0], {"k": v[1]}])


@programs(*TABLES)
def text_of_a_table(x, v):
    return x, str(v)


@programs(*TABLES)
def table_fills_a_template(x, v):
    return x, "%(b)s" % v, "{b}".format_map(v)


@programs(*TABLES)
def text_of_collected_keywords(x, v):
    def keywords(**options):
        return str(options)

    return x, keywords(**v)


@programs(*LISTS)
def hash_of_a_text(x, v):
    return x * (len(str(v)) % 7), {str(v): 1}


# -- functions of C that are mapped -------------------------------------------------------------------------------------


@programs(*LISTS)
def map_len(x, v):
    return x, list(map(len, v))


@programs(*LISTS)
def map_sum(x, v):
    return [x * n for n in map(sum, v)]


@programs(*LISTS)
def map_of_types(x, v):
    return x, list(map(tuple, v)), [set(s) for s in map(set, v)]


@programs(*LISTS)
def map_str_and_join(x, v):
    return x, ", ".join(map(str, v))


@programs(*LISTS)
def map_of_a_getter(x, v):
    return x, list(map(operator.itemgetter(-1), v))


@programs(*LISTS)
def map_of_a_method_caller(x, v):
    return x, list(map(operator.methodcaller("count", 3), v))


@programs(*LISTS)
def map_of_a_partial(x, v):
    return x, list(map(functools.partial(sorted, reverse=True), v))


@programs(*LISTS)
def map_over_a_generator(x, v):
    return x, list(map(sum, (w for w in v)))


@programs(*TABLES)
def map_over_values_of_a_table(x, v):
    return x, list(map(sum, v.values())), list(map(str, v.items()))


@programs(*WORDS)
def map_of_a_bound_method(x, v):
    return x, list(map({"a": 1, "bc": 2}.get, v)), list(map(str.upper, v)), list(map("-".join, v))


@programs(lambda: ([vector(), vector(2)],), lambda: ([vector(3), vector(2)],))
def map_of_torch_functions_and_modules(tensors):
    return list(map(torch.sin, tensors)), list(map(torch.nn.ReLU(), tensors)), list(map(torch.Tensor.neg, tensors))


class Point:
    def __init__(self, v: Any) -> None:
        self.v = v

    def doubled(self) -> Any:
        return self.v * 2


POINTS = each([Point([1]), Point([2])], [Point([1]), Point([0])], [Point([5]), Point([0])])


@programs(*POINTS)
def map_of_an_attribute_getter(x, v):
    return x, list(map(operator.attrgetter("v"), v)), list(map(operator.methodcaller("doubled"), v))


@programs(*POINTS)
def map_of_a_class_and_of_its_method(x, v):
    return x, [p.v for p in map(Point, v)][0].v, list(map(Point.doubled, v))


@programs(*FLAT)
def map_with_two_iterables(x, v):
    return x, list(map(operator.add, v, v)), list(map(pow, v, [2, 2, 2])), list(map(max, v, [2, 2, 2]))


@programs(*LISTS)
def filter_by_truth(x, v):
    v[0].clear()
    return x, list(filter(None, v)), list(itertools.filterfalse(None, v)), list(filter(len, v))


# -- reductions and order -----------------------------------------------------------------------------------------------


@programs(*LISTS)
def sum_of_lists(x, v):
    return x, sum(v, [])


@programs(*PAIRS)
def sum_of_tuples(x, v):
    return x, sum(v, ())


@programs(*LISTS)
def reduce_by_an_operator(x, v):
    return x, functools.reduce(operator.add, v)


@programs(*LISTS)
def largest_by_a_key_of_c(x, v):
    return x, max(v, key=sum), min(v, key=len) is v[-1]


@programs(*TABLES)
def largest_by_a_table(x, v):
    return x, max(v, key=v.get), min(v, key=lambda k: v[k]), max(v.values())


@programs(*TABLES)
def largest_item(x, v):
    return x, max(v.items(), key=operator.itemgetter(1))


@programs(*TABLES)
def sorted_values_and_items(x, v):
    return x, sorted(v.values()), sorted(v.items(), key=lambda p: p[1]), sorted(v, key=v.get)


@programs(*LISTS)
def sorted_pairs_of_lists(x, v):
    return x, sorted(zip(v, v, strict=True)), sorted(w for w in v), sorted(map(list, v))


@programs(*POINTS)
def sorted_by_what_instances_hold(x, v):
    return x, [p.v for p in sorted(v, key=lambda p: p.v)], [p.v for p in sorted(v, key=operator.attrgetter("v"))]


@programs(*POINTS)
def largest_of_what_instances_hold(x, v):
    return x, max(p.v for p in v), max(v, key=lambda p: p.v).v, sum((p.v for p in v), [])


@programs(*LISTS)
def list_is_sorted_by_a_key_of_c(x, v):
    v.sort(key=len, reverse=True)
    return x, v[0], v


@programs(*LISTS)
def heap_of_lists(x, v):
    heap: list[Any] = []
    for w in v:
        heapq.heappush(heap, w)
    return x, heapq.heappop(heap), heapq.nsmallest(1, v, key=sum)


@programs(*LISTS)
def bisect_among_lists(x, v):
    return x, bisect.bisect(v, [1, 3])


@programs(*FLAT)
def insort_changes_its_list(x, v):
    v.sort()
    bisect.insort(v, 2)
    bisect.insort_left(v, 0)
    return x, v[1], len(v)


# -- comparing --------------------------------------------------------------------------------------------------------------


@programs(*LISTS)
def comparison_by_operator_functions(x, v):
    return x, operator.eq(v, [[1, 2], [3]]), operator.lt(v, [[1, 3], [3]]), operator.contains(v, [3])


@programs(*LISTS)
def comparison_by_methods(x, v):
    return x, v.__eq__([[1, 2], [3]]), v.__lt__([[1, 3]]), v.count([3]), operator.countOf(v, [3])


@programs(*LISTS)
def comparison_with_a_fresh_list(x, v):
    return x, [v[0]] == [[1, 2]], (v, 1) in [([[1, 2], [3]], 1)], {"k": v} == {"k": [[1, 2], [3]]}


@programs(*TABLES)
def membership_in_views(x, v):
    return x, [2] in v.values(), ("b", [3]) in v.items(), v.items() == {"a": [1], "b": [2]}.items()


# -- hashing ----------------------------------------------------------------------------------------------------------------


@programs(*PAIRS)
def set_of_tuples(x, v):
    return x, (1, 2) in set(v)


@programs(*PAIRS)
def frozenset_of_tuples(x, v):
    return x, frozenset(v)


@programs(*PAIRS)
def tuple_in_a_set_display(x, v):
    return x, (1, 2) in {v[0]}


@programs(*PAIRS)
def tuple_as_a_key_of_a_display(x, v):
    return x, {v[0]: 1}.get((1, 2)), {(1, 2): 5}.get(v[0])


@programs(*PAIRS)
def tuples_are_counted(x, v):
    return x, collections.Counter(v)[(1, 2)], (1, 2) in dict.fromkeys(v), dict(zip(v, "ab", strict=True)).get((1, 2))


@programs(*PAIRS)
def sets_compared_with_tuples(x, v):
    return x, {(1, 2)} <= set(v), {(1, 2)}.issubset(v), {(1, 2)}.intersection(v)


@programs(*PAIRS)
def tuple_of_tuples_is_made(x, v):
    return x, tuple(v), (v[0], 1)


# -- iterators ----------------------------------------------------------------------------------------------------------------


@programs(*LISTS)
def chain_from_iterable_of_lists(x, v):
    return x, list(itertools.chain.from_iterable(v))


@programs(lambda: ([[vector()], [vector(2), 3]],), lambda: ([[vector(3)], [vector(2), 4]],))
def chain_from_iterable_of_lists_of_tensors(v):
    return [y + 1 for y in itertools.chain.from_iterable(v)]


@programs(*TABLES)
def chain_from_iterable_of_values(x, v):
    return (
        x,
        list(itertools.chain.from_iterable(v.values())),
        list(itertools.chain.from_iterable(w for w in v.values())),
    )


@programs(*PAIRS)
def starmap_of_both_kinds(x, v):
    return x, list(itertools.starmap(operator.add, v)), list(itertools.starmap(lambda a, b: a * b, v))


@programs(*LISTS)
def accumulated_lists(x, v):
    return x, list(itertools.accumulate(v)), list(itertools.accumulate([1, 2], max))


@programs(*LISTS)
def grouped_by_a_function_of_c(x, v):
    return x, [(k, list(g)) for k, g in itertools.groupby(v, key=len)], [k for k, g in itertools.groupby(v)]


@programs(*FLAT)
def iter_with_a_sentinel_calls_a_method(x, v):
    return x, list(iter(v.pop, 1)), v


# -- identity and change stay ---------------------------------------------------------------------------------------------


@programs(*each([[[1], [2]], [[3]]], [[[1], [0]], [[3]]]), breaks=True)
def what_c_code_gives_back_is_the_object_itself(x, v):
    best = max(v)
    best.append(9)
    first = sorted(v)[0]
    first[0].append(8)
    return x, best is v[1], first is v[0], str(v)


@programs(*LISTS)
def list_is_read_after_its_inner_list_has_changed(x, v):
    before = str(v)
    v[0].append(7)
    return x, before, sum(v[0]), v


@programs(*LISTS)
def inner_list_changes_while_it_is_mapped(x, v):
    seen = []
    for n in map(len, v):
        v[-1].append(n)
        seen.append(n)
    return x, seen, v


@programs(lambda: (vector(), [[vector()], [vector(2)]]), lambda: (vector(), [[vector(3)], [vector(2)]]))
def nested_lists_of_tensors_reach_c_code(x, v):
    return list(map(len, v)), sum(v, []), [t + x for row in map(tuple, v) for t in row], list(zip(*v, strict=True))


@programs(*[lambda: (vector(), 2)] * 2)
def bound_arguments_get_their_defaults(x, n):
    def f(a, b=3, *, c=4):
        return a

    bound = inspect.signature(f).bind(n)
    bound.apply_defaults()
    return x, bound.arguments, bound.args, bound.kwargs


@programs(*FLAT)
def operators_that_change_their_operand(x, v):
    w = operator.iadd(v, [5])
    y = operator.imul(x, 2)
    return operator.isub(7, 2), w is v, y is x, v


@programs(*each([1], [2, 3]))
def list_that_holds_itself(x, v):
    v.append(v)
    return x, len(v), v[-1] is v, v[-1][-1][0]


@programs(
    lambda: (vector(), [("a", vector()), ("b", vector(2))]), lambda: (vector(), [("a", vector(3)), ("c", vector(2))])
)
def fresh_list_of_pairs_from_outside_reaches_c_code(x, pairs):
    first, all_of_them = pairs[:1], pairs[:2]
    table = collections.OrderedDict(all_of_them)
    table.update(first)
    groups = [(key, [y + x for _, y in rows]) for key, rows in itertools.groupby(all_of_them, operator.itemgetter(0))]
    same = operator.is_(first, first), operator.is_(first[0], pairs[0]), first[0] is pairs[0]
    flat = [y for y in itertools.chain.from_iterable(all_of_them) if isinstance(y, torch.Tensor)]
    return [y + x for y in table.values()], groups, same, flat[1] * x, max(all_of_them, key=len)[1] - x


@programs(
    lambda: (vector(), {"a": [torch.ones(2)], "b": []}),
    lambda: (vector(), {"b": [torch.ones(2)]}),
    lambda: (vector(), {"a": [], "b": torch.ones(3)}),
)
def membership_in_the_keys_of_a_dict_of_tensors(x, table):
    """Keys are looked at, values are not."""
    if "a" in table.keys():
        table["a"].append(x * 2)
    return x + ("a" in table.keys()), "c" not in table.keys(), {"a": x}.keys().__contains__("b")
