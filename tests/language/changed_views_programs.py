"""Views of dicts from outside: types.MappingProxyType, and what keys, values and items give."""

import collections
import types

from scenario import Registry, v

scenario = Registry()


class Holder:
    pass


def contents():
    return {"a": v(), "b": 2, "c": [1, 2]}


def read_proxy(m):
    return m["a"] * m["b"], list(m), len(m), "a" in m, "z" in m, m.get("z", 3), bool(m)


def copy_proxy(m):
    return {key: value for key, value in m.items()}, dict(m), {**m}, list(m.values())[1], list(m.keys())


def proxy_as_keywords(m):
    return (lambda a, b, c: a * b)(**m)


def missing_key(m):
    try:
        return m["z"]
    except KeyError as error:
        return m["a"] + len(repr(error))


def read_view(m):
    return [item for item in m], len(m)


def returned_view(m):
    return m, len(m)


def of_keys(m):
    return "a" in m, sorted(m), m & {"a", "z"}, m | {"q"}


PROXY, KEYS, VALUES, ITEMS = types.MappingProxyType, dict.keys, dict.values, dict.items
for program, make in (
    (read_proxy, PROXY),
    (copy_proxy, PROXY),
    (proxy_as_keywords, PROXY),
    (missing_key, PROXY),
    (returned_view, PROXY),
    (read_view, KEYS),
    (read_view, VALUES),
    (read_view, ITEMS),
    (returned_view, KEYS),
    (returned_view, VALUES),
    (of_keys, KEYS),
):

    def scenario_of(start, program=program, make=make):
        d = contents()
        view = make(d)
        c = start(program, view)
        c(view)
        d["b"] = 5
        c(view)
        d["b"] = 7
        c(view)
        d["c"].append(3)
        c(view)
        c(make(contents()))

    scenario_of.__name__ = f"{program.__name__}_of_{getattr(make, '__name__', 'proxy')}"
    scenario(scenario_of)


@scenario
def views_of_an_ordered_dict(start):
    d = collections.OrderedDict(a=v(), b=2)

    def program(keys, values, items):
        return list(keys), [value * 2 for value in values], dict(items)

    c = start(program)
    c(d.keys(), d.values(), d.items())
    d.move_to_end("a")
    c(d.keys(), d.values(), d.items())


@scenario
def proxy_of_a_dict_that_is_written(start):
    d = {"a": 1}
    m = types.MappingProxyType(d)

    def program(x, d, m):
        d["a"] = x
        d["n"] = x + 1
        return m["a"] * 2, m["n"] * 3, list(m), len(m)

    c = start(program, d)
    c(v(), d, m)
    c(v(), d, m)


@scenario
def proxy_in_an_attribute(start):
    holder = Holder()
    holder.options = types.MappingProxyType({"scale": 2})

    def program(x):
        return x * holder.options["scale"]

    c = start(program)
    c(v())
    c.hits(v())
    holder.options = types.MappingProxyType({"scale": 3})
    c(v())


@scenario
def user_dict_as_keywords(start):
    def program(d):
        return (lambda a, b: a * b)(**d), {**d}, dict(d)

    c = start(program)
    d = collections.UserDict(a=v(), b=2)
    c(d)
    d["b"] = 3
    c(d)
    d["b"] = 4
    c(d)


class Mapping:
    def __init__(self, keys):
        self.names = keys

    def keys(self):
        return self.names

    def __getitem__(self, key):
        return len(key) * 2


class NoKeys:
    def __getitem__(self, key):
        return key


@scenario
def own_mapping_as_keywords(start):
    def program(x, d):
        try:
            return x * (lambda a, bc: a + bc)(**d)
        except TypeError as error:
            return x, str(error)[-40:]

    c = start(program)
    c(v(), Mapping(["a", "bc"]))
    c(v(), Mapping(["a"]))
    c(v(), Mapping(("a", "bc")))
    c(v(), NoKeys())
