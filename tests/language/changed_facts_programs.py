"""What functions, classes and modules say of themselves is changed between calls: texts, names, annotations, defaults,
code, cells, bases, namespaces."""

import types

from scenario import Registry, restored, v

scenario = Registry()


def helper(x, y=2, *, z=3):
    """One."""
    return x * y + z


@scenario
def text_of_a_function(start):

    def f(x):
        """One."""
        return x + 1

    def program(x):
        return (f(x), f.__doc__)

    c = start(program)
    c(v())
    f.__doc__ = "Two."
    c(v())
    f.__doc__ = None
    c(v())


@scenario
def text_of_a_function_of_the_module(start):

    def program(x):
        return (x + 1, helper.__doc__, helper.__module__)

    c = start(program)
    with restored(helper, "__doc__", "__module__"):
        c(v())
        helper.__doc__ = "Two."
        c(v())
        helper.__module__ = "elsewhere"
        c(v())
    c(v())


@scenario
def names_of_a_function_of_the_module(start):

    def program(x):
        return (x + 1, helper.__name__, helper.__qualname__)

    c = start(program)
    with restored(helper, "__name__", "__qualname__"):
        c(v())
        helper.__name__ = "other"
        c(v())
        helper.__qualname__ = "some.other"
        c(v())
    c(v())


@scenario
def annotations_of_a_function(start):

    def f(x: int, y: "str" = "a") -> float:
        return x + 1

    def program(x):
        return (f(x), f.__annotations__.get("x"), len(f.__annotations__), sorted(f.__annotations__))

    c = start(program)
    c(v())
    f.__annotations__["x"] = float
    c(v())
    f.__annotations__["z"] = int
    c(v())
    f.__annotations__ = {"return": None}
    c(v())
    del f.__annotations__
    c(v())


@scenario
def annotations_of_a_function_of_the_module(start):

    def program(x):
        return (x + 1, dict(helper.__annotations__))

    c = start(program)
    try:
        c(v())
        helper.__annotations__["x"] = int
        c(v())
        helper.__annotations__ = {"y": str}
        c(v())
    finally:
        helper.__annotations__ = {}
    c(v())


@scenario
def defaults_of_a_function_as_they_are_read(start):

    def program(x):
        return (helper(x), helper.__defaults__, helper.__kwdefaults__)

    c = start(program)
    with restored(helper, "__defaults__", "__kwdefaults__"):
        c(v())
        helper.__defaults__ = (5,)
        c(v())
        helper.__kwdefaults__ = {"z": 7}
        c(v())
        helper.__kwdefaults__["z"] = 8
        c(v())
        helper.__defaults__ = None
        c(v())
    c(v())


@scenario
def defaults_that_are_only_read(start):

    def program(x):
        return (x + 1, helper.__defaults__, helper.__kwdefaults__["z"])

    c = start(program)
    with restored(helper, "__defaults__", "__kwdefaults__"):
        c(v())
        helper.__defaults__ = (5,)
        c(v())
        helper.__kwdefaults__ = {"z": 7}
        c(v())
        helper.__kwdefaults__["z"] = 8
        c(v())
    c(v())


@scenario
def code_that_is_only_read(start):

    def f(x, y):
        return x

    def g(x):
        return x

    def program(x):
        return (x + 1, f.__code__.co_argcount, f.__code__.co_varnames, f.__code__ is g.__code__)

    c = start(program)
    c(v())
    f.__code__ = g.__code__
    c(v())


@scenario
def code_of_a_method_replaced(start):

    class A:
        def f(self, x):
            return x + 1

        def g(self, x):
            return x - 1

    a = A()

    def program(x):
        return (a.f(x), A.f.__code__.co_name, a.f.__func__.__code__.co_consts)

    c = start(program)
    c(v())
    A.f.__code__ = A.g.__code__
    c(v())


def cell_is_read(name, read):
    def scenario_of(start):

        def make(n):
            def f(x):
                return x * n

            return f

        f = make(2)

        def program(x):
            return read(f, x)

        c = start(program)
        c(v())
        f.__closure__[0].cell_contents = 5
        c(v())

    scenario_of.__name__ = name
    scenario(scenario_of)


cell_is_read("cells_of_a_closure", lambda f, x: (f(x), f.__closure__[0].cell_contents))
cell_is_read("cells_that_are_only_read", lambda f, x: (x + 1, f.__closure__[0].cell_contents, len(f.__closure__)))


@scenario
def wrapped_of_a_function(start):

    def f(x):
        return x + 1

    def g(x):
        return x - 1

    f.__wrapped__ = g

    def program(x):
        return (f.__wrapped__(x), getattr(f, "__wrapped__", None) is g, f.__dict__.get("__wrapped__") is None)

    c = start(program)
    c(v())
    f.__wrapped__ = f
    c(v())
    f.__wrapped__ = lambda x: x * 5
    c(v())


@scenario
def text_of_a_class(start):

    class A:
        """One."""

    class B(A):
        pass

    def program(x):
        return (x + 1, A.__doc__, B.__doc__, A().__doc__)

    c = start(program)
    c(v())
    A.__doc__ = "Two."
    c(v())
    B.__doc__ = "Three."
    c(v())


@scenario
def annotations_of_a_class(start):

    class A:
        x: int
        y: str = "a"

    class B(A):
        pass

    def program(x):
        return (x + 1, A.__annotations__["x"], len(A.__annotations__), len(B.__annotations__), list(A.__annotations__))

    c = start(program)
    c(v())
    A.__annotations__["x"] = float
    c(v())
    A.__annotations__["z"] = float
    c(v())
    A.__annotations__ = {"x": str}
    c(v())
    B.__annotations__ = {"x": str}
    c(v())


@scenario
def names_of_a_class(start):

    class A:
        pass

    a = A()

    def program(x):
        return (x + 1, A.__name__, type(a).__qualname__, a.__class__.__module__, A.__module__)

    c = start(program)
    c(v())
    A.__name__ = "Other"
    c(v())
    A.__qualname__ = "some.Other"
    c(v())
    A.__module__ = "elsewhere"
    c(v())


@scenario
def text_of_an_object_that_names_its_class(start):

    class A:
        pass

    class E(Exception):
        pass

    def program(x):
        return (x + 1, f"{A}", repr(E), str(A), "%s" % A, "{}".format(A))

    c = start(program)
    c(v())
    A.__name__ = "Other"
    c(v())
    A.__qualname__ = "some.Other"
    E.__qualname__ = "F"
    c(v())
    A.__module__ = "elsewhere"
    c(v())


@scenario
def text_of_a_function_that_names_it(start):

    def f(x):
        return x

    def program(x):
        return (x + 1, repr(f).split(" at ")[0])

    c = start(program)
    c(v())
    f.__qualname__ = "some.other"
    c(v())


@scenario
def bases_that_are_only_read(start):

    class A:
        pass

    class C:
        pass

    class B(A):
        pass

    def program(x):
        return (x + 1, B.__bases__, B.__mro__, B.__base__, [k.__name__ for k in B.mro()], A in B.__mro__)

    c = start(program)
    c(v())
    B.__bases__ = (A, C)
    c(v())
    B.__bases__ = (C,)
    c(v())


@scenario
def attributes_of_a_class_deleted(start):

    class A:
        k = 2

        def f(self, x):
            return x * self.k

    class B(A):
        k = 3

        def f(self, x):
            return x + self.k

    b = B()

    def program(x):
        return (b.f(x), b.k, B.k, "k" in vars(B), "f" in B.__dict__, hasattr(B, "k"))

    c = start(program)
    c(v())
    del B.k
    c(v())
    del B.f
    c(v())
    B.k = 9
    c(v())


@scenario
def namespace_of_a_class(start):

    class A:
        k = 2

    def program(x):
        return (x * A.__dict__["k"], [n for n in vars(A) if not n.startswith("_")], A.__dict__.get("j"))

    c = start(program)
    c(v())
    A.k = 3
    c(v())
    A.j = 4
    c(v())
    del A.k
    A.k = 5
    c(v())


@scenario
def namespace_of_a_module(start):
    mod = types.ModuleType("hunt_space")
    mod.a = 1

    def program(x):
        names = sorted(n for n in vars(mod) if not n.startswith("_"))
        return (x * mod.__dict__["a"], names, mod.__name__, mod.__doc__, getattr(mod, "b", None))

    c = start(program)
    c(v())
    mod.a = 2
    c(v())
    mod.b = 3
    c(v())
    mod.__name__ = "other"
    c(v())
    mod.__doc__ = "text"
    c(v())
    del mod.b
    c(v())
