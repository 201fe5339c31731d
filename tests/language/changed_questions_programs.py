"""What functions of the standard library ask of functions, classes and modules is changed between calls, and objects of
classes that make their instances themselves are handed out: each was wrong once."""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import sys
import types
import typing

from scenario import Registry, v

scenario = Registry()


def signature_of(make, *changes):
    """`make` gives an object to ask and its parts by name; each change is made, and the object is asked again."""

    def scenario_of(start):
        asked, parts = make()

        def program(x):
            signature = inspect.signature(asked)
            return (x + len(signature.parameters), str(signature), [p.default for p in signature.parameters.values()])

        c = start(program)
        c(v())
        for change in changes:
            change(parts)
            c(v())

    scenario_of.__name__ = f"signature_of_{make.__name__}"
    scenario(scenario_of)


def an_instance():
    class K:
        def __call__(self, a, b): ...

    return K(), K


def a_class():
    class B:
        def __init__(self, a, b, c): ...

    class K(B):
        def __init__(self, a, b=1): ...

    return K, K


def a_method():
    class K:
        def f(self, a, b): ...

    return K().f, K


def a_partial():
    def f(a, b, c=1): ...

    return functools.partial(f, c=3), f


def a_wrapped_function():
    def f(a, b, c=1): ...

    @functools.wraps(f)
    def g(*args): ...

    @functools.wraps(g)
    def h(*args): ...

    return h, f


signature_of(
    an_instance,
    lambda k: setattr(k, "__call__", lambda self, a: 1),
    lambda k: setattr(k, "__signature__", inspect.signature(lambda q, w, e: 1)),
)
signature_of(a_class, lambda k: setattr(k, "__init__", lambda self, a: None), lambda k: delattr(k, "__init__"))
signature_of(a_method, lambda k: setattr(k.f, "__defaults__", (1,)))
signature_of(a_partial, lambda f: setattr(f, "__defaults__", (7,)))
signature_of(
    a_wrapped_function,
    lambda f: setattr(f, "__defaults__", (7,)),
    lambda f: setattr(f, "__code__", (lambda z: 1).__code__),
)


@scenario
def members_of_an_object(start):

    class K:
        a = 1

        def m(self): ...

    k = K()

    def program(x):
        names = [n for n, _ in inspect.getmembers(k) if not n.startswith("__")]
        return (x + len(names), inspect.isfunction(K.m), inspect.getdoc(K), inspect.getmro(K))

    c = start(program)
    c(v())
    K.b = 2
    c(v())
    k.z = 3
    c(v())
    K.__doc__ = "text"
    c(v())
    K.m = 5
    c(v())


@scenario
def frames_of_the_program(start):

    def helper():
        return inspect.stack()[1].function

    def program(x):
        return (x + 1, inspect.currentframe().f_code.co_name, helper())

    c = start(program)
    c(v())
    c(v())


@scenario
def hints_of_a_class_and_a_function(start):
    names = globals()
    names["Hinted"] = str

    class B:
        q: int

    class K(B):
        a: int
        b: "Hinted"  # noqa: F821

    def f(a: "Hinted"): ...  # noqa: F821

    def program(x):
        return (x + 1, typing.get_type_hints(K), typing.get_type_hints(f))

    c = start(program)
    c(v())
    names["Hinted"] = float
    c(v())
    K.__annotations__["z"] = list
    c(v())
    B.__annotations__["q"] = bytes
    c(v())
    f.__annotations__ = {"only": int}
    c(v())
    del names["Hinted"]


@scenario
def texts_of_members_and_objects(start):
    names = {"a": "A!"}

    class E(enum.Enum):
        A = "a"

        def __str__(self):
            return names[self.value]

    class F(enum.Enum):
        A = "a"

        def __format__(self, spec):
            return names["a"] + spec

    class K:
        def __repr__(self):
            return names["a"]

    k = K()

    def program(x):
        texts = [f"{E.A}", str(E.A), "%s" % E.A, "{}".format(E.A), repr(E.A), f"{F.A:q}", "{:w}".format(F.A)]
        return (x + 1, texts, repr(k), f"{k}", str([k]), "%r" % (k,))

    c = start(program)
    c(v())
    names["a"] = "B"
    c(v())
    E.__str__ = lambda self: "new"
    c(v())
    E.__repr__ = lambda self: "repr"
    F.__format__ = lambda self, spec: "format"
    c(v())
    K.__repr__ = lambda self: "repr"
    c(v())
    K.__str__ = lambda self: "str"
    c(v())
    K.__format__ = lambda self, spec: "format"
    c(v())


@scenario
def members_of_an_enum_looked_up(start):
    odd = [0]

    class E(enum.Enum):
        A = 1
        B = 2

    class M(enum.IntFlag):
        A = 1
        B = 2

        @classmethod
        def _missing_(cls, value):
            return cls.A if odd[0] else super()._missing_(value)

    def program(x):
        return (x + E(1).value, E["B"].name, M.A | M.B, M(6), M.A ^ M.B)

    c = start(program)
    c(v())
    odd[0] = 1
    c(v())
    E._value2member_map_[1] = E.B
    c(v())
    E._member_map_["B"] = E.A
    c(v())
    M._missing_ = classmethod(lambda cls, value: M.B)
    c(v())


@scenario
def class_registered_for_a_single_dispatch(start):

    class P(abc.ABC): ...  # noqa: B024

    class K: ...

    @functools.singledispatch
    def f(o):
        return 0

    @f.register(P)
    def _(o):
        return 1

    k = K()

    def program(x):
        return x + f(k)

    c = start(program)
    c(v())
    P.register(K)
    c(v())


@scenario
def module_imported_by_its_name(start):
    module = sys.modules["hunted_import"] = types.ModuleType("hunted_import")
    module.k = 1

    def program(x):
        return x + importlib.import_module("hunted_import").k

    c = start(program)
    c(v())
    module.k = 2
    c(v())
    sys.modules["hunted_import"] = types.ModuleType("hunted_import")
    sys.modules["hunted_import"].k = 9
    c(v())
    del sys.modules["hunted_import"]
    c(v())


@scenario
def module_of_a_class_with_properties(start):

    class M(types.ModuleType):
        @property
        def k(self):
            return self.__dict__["_k"] * 2

    module = M("hunted")
    module._k = 2

    def program(x):
        return (x * module.k, module.__name__)

    c = start(program)
    c(v())
    module._k = 3
    c(v())
    M.k = 9
    c(v())


@scenario
def fields_of_a_dataclass_removed(start):

    @dataclasses.dataclass
    class K:
        a: int = 1
        b: int = 2

    k = K()

    def program(x):
        names = [f.name for f in dataclasses.fields(k)]
        return (x + len(names), names, dataclasses.is_dataclass(k), dataclasses.asdict(k))

    c = start(program)
    c(v())
    del K.__dataclass_fields__["b"]
    c(v())
    K.__dataclass_fields__["a"].name = "b"
    c(v())


def made_anew(name, make):
    """A class or variable that the program makes is another one in each call, and knows the program's module."""

    def scenario_of(start):
        def program(x):
            made = make()
            return (x + 1, made, made.__module__)

        c = start(program)
        a, b = c(v())[1], c(v())[1]
        start(lambda x: (x, a is b))(v())

    scenario_of.__name__ = f"made_anew_{name}"
    scenario(scenario_of)


made_anew("enum", lambda: enum.Enum("P", "a b"))
made_anew("named_tuple", lambda: typing.NamedTuple("P", [("a", int)]))
made_anew("typed_dict", lambda: typing.TypedDict("P", {"a": int}))
made_anew("new_type", lambda: typing.NewType("P", int))
made_anew("type_variable", lambda: typing.TypeVar("T"))
made_anew("abstract_class", lambda: abc.ABCMeta("P", (), {}))


# -- instances that their classes make -------------------------------------------------------------------------------


class Pair(collections.namedtuple("Pair", "a b")):
    def __new__(cls, a, b, extra):
        self = super().__new__(cls, a, b)
        self.extra = extra
        return self


def derived(base):
    class Derived(base):
        def __new__(cls, *args):
            self = super().__new__(cls, *args)
            self.extra = len(args)
            return self

    Derived.__name__ = f"derived_from_{base.__name__}"
    return Derived


def handed_out(name, cls, *args):
    """An instance is alive at an exit, is changed behind it, and is given back; another one comes from outside."""

    def scenario_of(start):
        def program(x, out):
            made = cls(*args)
            print("exit")
            made.more = x + 1
            out.append(made)
            return (made, made.extra, x * 2)

        c = start(program)
        c(v(), [])
        c(v(2), [])
        outside = cls(*args)

        def changing(x):
            outside.extra = outside.extra + 1
            return (x * outside.extra, outside)

        c = start(changing, outside)
        c(v())
        outside.extra = 50
        c(v())
        del outside.extra
        c(v())

    scenario_of.__name__ = f"instance_of_{name}"
    scenario(scenario_of)


handed_out("pair", Pair, 1, [2], 3)
for base, args in (
    (int, (3,)),
    (float, (3.5,)),
    (str, ("text",)),
    (bytes, (b"text",)),
    (list, ([1, 2],)),
    (tuple, ([1, 2],)),
    (set, ([1, 2],)),
    (frozenset, ([1, 2],)),
    (dict, ({"a": 1},)),
    (collections.OrderedDict, ({"a": 1},)),
    (collections.Counter, ("aab",)),
    (collections.defaultdict, (list, {"a": 1})),
    (collections.deque, ([1, 2],)),
    (ValueError, ("text",)),
    (complex, (1j,)),
):
    handed_out(base.__name__, derived(base), *args)


@scenario
def constructors_with_effects(start):
    log = []

    class K:
        __slots__ = ("a", "b")

        def __new__(cls, a):
            self = super().__new__(cls)
            self.a = a
            log.append("made")
            return self

        def __init__(self, a):
            self.b = 1

    class E(ValueError):
        def __new__(cls, a, b):
            log.append("raised")
            return super().__new__(cls, a)

    def program(x, raises):
        k = K(x + 1)
        if raises:
            raise E(1, raises)
        return k

    c = start(program, log)
    for raises in (0, 0, 2, 2):
        c(v(), raises)


@scenario
def constructors_that_give_another_instance(start):

    class L(list):
        made = None

        def __new__(cls, a):
            if cls.made is None:
                cls.made = super().__new__(cls)
            return cls.made

    class Error(Exception):
        def __new__(cls, kind):
            return Other(kind) if kind else super().__new__(cls, kind)

    class Other(Error):
        def __new__(cls, kind):
            return Exception.__new__(cls, kind)

        def __init__(self, kind):
            self.kind = [kind]

    def program(x, k):
        error = Error(k)
        return (L([k]), x + 1, type(error).__name__, error.args, getattr(error, "kind", None))

    c = start(program, L)
    for k in (1, 1, 0, 2):
        c(v(), k)
    L.made = None
    c(v(), 3)


@scenario
def iterators_from_outside_that_constructors_exhaust(start):

    class L(list): ...

    class S(set): ...

    class T(tuple): ...

    def program(x, K, items):
        return (x, K(items))

    c = start(program)
    for K in (L, S, T):
        items = iter([1, 2, 3])
        c(v(), K, items)
        c(v(), K, items)
        c(v(), K, iter([7]))


@scenario
def wrappers_of_functions_made_inside(start):

    def program(x, out):
        y = x + 1
        wrappers = [staticmethod(lambda: y * 2), classmethod(lambda cls: y * 3), property(lambda self: y * 4)]
        with contextlib.redirect_stdout(sys.stderr):
            out.append(wrappers)
        return wrappers[0].__func__() + wrappers[2].fget(None)

    c = start(program)
    for s in (1, 2):
        out = []
        c(v(s), out)
        start(lambda x, out=out: x + out[0][1].__func__(None))(v())
