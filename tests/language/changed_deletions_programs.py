"""What is deleted, set again and read: cells, globals, attributes and items of every kind, in one run and over several."""

import collections
import types

import torch
from scenario import Registry, v

scenario = Registry()


def value_or_error(read):
    try:
        return read()
    except NameError as error:
        return str(error)


@scenario
def cell_deleted_stored_and_read(start):
    out = 1

    def program(x):
        nonlocal out
        try:
            del out
            out = x + 1
            return out * 2
        finally:
            pass

    c = start(program)
    look = start(lambda: value_or_error(lambda: out))
    for _ in range(2):
        c(v())
        look()


@scenario
def cell_deleted_twice(start):
    out = 1

    def program(x):
        nonlocal out
        out = x
        del out
        gone = value_or_error(lambda: out)
        out = x + 1
        between = out
        del out
        out = x + 3
        return between, gone, out * 2

    c = start(program)
    look = start(lambda: value_or_error(lambda: out))
    for _ in range(2):
        c(v())
        look()


@scenario
def cell_left_deleted(start):
    out = 1

    def program(x):
        nonlocal out
        try:
            del out
        except NameError as error:
            return str(error)
        out = x
        del out
        return x + 1

    c = start(program)
    look = start(lambda: value_or_error(lambda: out))
    for _ in range(2):
        c(v())
        look()
    out = 3
    c(v())
    look()


@scenario
def cell_read_by_others(start):
    out = 1

    def inner():
        return out

    cell = inner.__closure__[0]

    def program(x):
        nonlocal out
        del out
        out = x + 1
        return cell.cell_contents * 2, inner() * 3

    c = start(program)
    c(v())
    c(v())


@scenario
def own_cell_deleted(start):
    def program(x):
        a = x

        def inner():
            return a

        del a
        gone = value_or_error(inner)
        a = x + 1
        return inner(), gone

    c = start(program)
    c(v())
    c.hits(v())


@scenario
def global_deleted(start):
    space = {"torch": torch}
    code = """
def program(x):
    global count
    del count
    try:
        count
    except NameError as error:
        gone = str(error)
    count = x + 1
    first = count * 2
    del count
    count = x + 5
    return first, count, gone, list(globals())[-1]
"""
    exec(code, space)  # its globals are its own
    space["count"] = 1
    c = start(space["program"])
    look = start(lambda: space["count"])
    for _ in range(2):
        c(v())
        look()


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b")


def attribute_of(make):
    def scenario_of(start):
        owner = make()
        owner.a, owner.b = 1, 2

        def program(x):
            del owner.a
            gone = hasattr(owner, "a")
            owner.a = x + 1
            first = owner.a * 2
            del owner.a
            owner.a = x + 2
            del owner.b
            return first, owner.a * 1, gone, hasattr(owner, "b")

        c = start(program, owner)
        c(v())
        owner.b = 7
        c(v())
        owner.b = 3
        c(v())

    return scenario_of


for name, make in (
    ("instance", Plain),
    ("slotted", Slotted),
    ("class", lambda: type("Made", (), {})),
    ("nn_module", torch.nn.Module),
    ("module", lambda: types.ModuleType("made")),
    ("namespace", types.SimpleNamespace),
    ("function", lambda: lambda: 1),
):
    program_of = attribute_of(make)
    program_of.__name__ = f"attribute_of_{name}"
    scenario(program_of)


def item_of(make):
    def scenario_of(start):
        owner = make()
        owner["a"], owner["b"] = 1, 2

        def program(x):
            del owner["a"]
            gone = "a" in owner
            owner["a"] = x + 1
            first = owner["a"] * 2
            del owner["a"]
            try:
                missing = owner["a"]
            except KeyError as error:
                missing = repr(error)
            owner["a"] = x + 2
            del owner["b"]
            return first, owner["a"] * 1, gone, "b" in owner, missing, list(owner), len(owner)

        c = start(program, owner)
        c(v())
        owner["b"] = 7
        c(v())
        owner["b"] = 3
        c(v())

    return scenario_of


for name, make in (
    ("dict", dict),
    ("ordered_dict", collections.OrderedDict),
    ("default_dict", lambda: collections.defaultdict(int)),
    ("dict_subclass", type("Derived", (dict,), {})),
    ("user_dict", collections.UserDict),
    ("counter", collections.Counter),
    ("instance_dict", lambda: Plain().__dict__),
):
    program_of = item_of(make)
    program_of.__name__ = f"item_of_{name}"
    scenario(program_of)


@scenario
def buffer_deleted(start):
    module = torch.nn.Module()
    module.register_buffer("b", torch.ones(6))

    def program(x):
        del module.b
        module.b = x + 1
        return module.b * 2

    c = start(program)
    look = start(lambda: (list(module._buffers), module.b))
    for _ in range(2):
        c(v())
        look()


@scenario
def attribute_by_functions(start):
    owner = Plain()
    owner.a = 1

    def program(x):
        delattr(owner, "a")
        setattr(owner, "a", x)  # noqa: B010
        first = getattr(owner, "a") + 1  # noqa: B009
        vars(owner).pop("a")
        owner.__dict__["a"] = x * 3
        return first, owner.a + 1

    c = start(program, owner)
    c(v())
    c(v())
