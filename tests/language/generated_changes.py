"""Programs that read a value from a place, called again when the value is changed: every place with every change, read
in every way.

A place is where the value `V` is found, a change what becomes of it, a reader what the program does with it as `v`."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import Any, NamedTuple

import torch

PRELUDE = """
import abc, collections, contextvars, functools, threading, types, weakref
import numpy, torch

class Box:
    def __init__(self, n=1):
        self.n = n
    def run(self, x):
        return x * 3

class Other(Box):
    def run(self, x):
        return x - 3

class Child(Box):
    pass

class Registered(abc.ABC):
    pass

class Slotted:
    __slots__ = ("n",)

Pair = collections.namedtuple("Pair", "a n")

def identity(value):
    return value

def one(y, k=1):
    return y * k

def two(y, k=1):
    return y - k

def switched(on):
    with torch.backends.__allow_nonbracketed_mutation():  # tests of PyTorch's that others import forbid it elsewhere
        torch.backends.cudnn.enabled = on
    return torch.backends.cudnn

def with_gradients(on):
    torch.set_grad_enabled(on)
    return lambda x: x + torch.is_grad_enabled()

def counted():
    module = torch.nn.Module()
    module.register_buffer("count", torch.tensor(3))
    return module
"""


class Place(NamedTuple):
    """Statements that make it (`h` is an argument of the program), an expression, statements that put and drop."""

    make: str
    get: str
    put: str
    drop: str


PLACES = {
    "argument": Place("h = V", "h", "h = V", "h = None"),
    "list_item": Place("h = [0, V]", "h[1]", "h[1] = V", "del h[1]"),
    "last_item": Place("h = [0, V]", "h[-1]", "h.append(V)", "h.clear()"),
    "dict_item": Place("h = {'k': V}", "h['k']", "h['k'] = V", "del h['k']"),
    "dict_get": Place("h = {'k': V}", "h.get('k')", "h['k'] = V", "del h['k']"),
    "tuple_item": Place("h = (0, V)", "h[1]", "h = (0, V)", "h = (0,)"),
    "named_tuple": Place("h = Pair(0, V)", "h.n", "h = Pair(0, V)", "h = (0,)"),
    "deque_item": Place("h = collections.deque([0, V])", "h[1]", "h[1] = V", "h.pop()"),
    "attribute": Place("h = Box(V)", "h.n", "h.n = V", "del h.n"),
    "instance_dict": Place("h = Box(V)", "h.__dict__['n']", "h.n = V", "del h.n"),
    "getattr_default": Place("h = Box(V)", "getattr(h, 'n', 5)", "h.n = V", "del h.n"),
    "namespace": Place("h = types.SimpleNamespace(n=V)", "h.n", "h.n = V", "del h.n"),
    "nested": Place("h = {'a': [Box(V)]}", "h['a'][0].n", "h['a'][0].n = V", "h['a'] = []"),
    "slot": Place("h = Slotted(); h.n = V", "h.n", "h.n = V", "del h.n"),
    "class_attribute": Place("class L: pass\nL.n = V; h = L()", "h.n", "L.n = V", "del L.n"),
    "inherited": Place("class B: pass\nclass L(B): pass\nB.n = V; h = L()", "h.n", "B.n = V", "del B.n"),
    "shadowing": Place("class L: n = 4\nh = L(); h.n = V", "h.n", "h.n = V", "del h.n"),
    "between": Place("class B: pass\nclass L(B): pass\nB.n = V; h = L()", "h.n", "L.n = V", "del B.n"),
    "of_the_class": Place("class L: pass\nL.n = V; h = L()", "type(h).n", "L.n = V", "del L.n"),
    "metaclass": Place("class M(type): pass\nclass L(metaclass=M): pass\nM.n = V; h = L", "h.n", "M.n = V", "del M.n"),
    "property": Place(
        "class L:\n    @property\n    def n(self): return self.m\nh = L(); h.m = V", "h.n", "h.m = V", "del h.m"
    ),
    "descriptor": Place(
        "class D:\n    def __get__(self, *_): return self.m\nclass L: n = D()\nL.__dict__['n'].m = V; h = L()",
        "h.n", "L.__dict__['n'].m = V", "del L.n",
    ),
    "fallback": Place(
        "class L:\n    def __getattr__(self, name): return self.__dict__['m']\nh = L(); h.m = V",
        "h.n", "h.n = V", "del L.__getattr__",
    ),
    "method_self": Place("class L(Box):\n    def read(self): return self.n\nh = L(V).read", "h()", "h.__self__.n = V", "del h.__self__.n"),
    "global": Place("h = None; N = V", "N", "N = V", "del N"),
    "inner_global": Place("h = None; N = V\ndef read(): return N", "read()", "N = V", "del N"),
    "cell": Place(
        "def make(n):\n    def read(): return n\n    return read\nh = make(V)", "h()",
        "h.__closure__[0].cell_contents = V", "del h.__closure__[0].cell_contents",
    ),
    "default": Place("def read(n=V): return n\nh = read", "h()", "h.__defaults__ = (V,)", "h.__defaults__ = None"),
    "keyword_default": Place("def read(*, n=V): return n\nh = read", "h()", "h.__kwdefaults__['n'] = V", "h.__kwdefaults__ = None"),
    "function_attribute": Place("h = None\ndef read(): pass\nread.n = V", "read.n", "read.n = V", "del read.n"),
    "python_module": Place("h = types.ModuleType('m'); h.n = V", "h.n", "h.n = V", "del h.n"),
    "nn_module": Place("h = torch.nn.Module(); h.n = V", "h.n", "h.n = V", "del h.n"),
    "nn_submodule": Place("h = torch.nn.Sequential(torch.nn.Module()); h[0].n = V", "h[0].n", "h[0].n = V", "del h[0].n"),
    "partial": Place("h = functools.partial(identity, V)", "h()", "h = functools.partial(identity, V)", "h = functools.partial(identity)"),
    "global_dict": Place("h = None; T = {'k': V}", "T['k']", "T['k'] = V", "del T['k']"),
    "thread_local": Place("h = threading.local(); h.n = V", "h.n", "h.n = V", "del h.n"),
    "context_variable": Place("h = contextvars.ContextVar('h'); h.set(V)", "h.get()", "h.set(V)", "h.set(0)"),
}  # fmt: skip

# What the value is at first, and statements that change it; `put` follows.
CHANGES = {
    "number": ("1", "V = 2"),
    "number_to_bool": ("1", "V = True"),
    "number_to_float": ("1", "V = 1.0"),
    "bool": ("True", "V = False"),
    "float": ("1.5", "V = 2.5"),
    "sign_of_zero": ("0.0", "V = -0.0"),
    "not_a_number": ("0.5", "V = float('nan')"),
    "complex": ("1j", "V = 2j"),
    "text": ("'a'", "V = 'b'"),
    "bytes": ("b'a'", "V = b'b'"),
    "none": ("None", "V = 1"),
    "to_none": ("1", "V = None"),
    "dtype": ("torch.float32", "V = torch.float64"),
    "range": ("range(2)", "V = range(3)"),
    "slice": ("slice(0, 2)", "V = slice(0, 3)"),
    "tuple_item": ("(1, 2)", "V = (1, 3)"),
    "list_grows": ("[1, 2]", "V.append(3)"),
    "list_shrinks": ("[1, 2]", "V.pop()"),
    "list_item": ("[1, 2]", "V[0] = 5"),
    "list_item_of_another_type": ("[1, 2]", "V[0] = True"),
    "list_is_emptied": ("[1, 2]", "V.clear()"),
    "list_to_tuple": ("[1, 2]", "V = tuple(V)"),
    "inner_list": ("[[1], [2]]", "V[1].append(3)"),
    "one_list_twice": ("[[1], [1]]", "V[0] = V[1]"),
    "dict_value": ("{'a': 1, 'b': 2}", "V['a'] = 3"),
    "dict_key_added": ("{'a': 1}", "V['c'] = 3"),
    "dict_key_removed": ("{'a': 1, 'b': 2}", "del V['a']"),
    "dict_order": ("{'a': 1, 'b': 2}", "V['a'] = V.pop('a')"),
    "set_item": ("{'a'}", "V.add('c')"),
    "set_item_removed": ("{'a'}", "V.clear()"),
    "tensor_values": ("torch.ones(6)", "V.add_(1)"),
    "tensor": ("torch.ones(6)", "V = torch.zeros(6)"),
    "tensor_size": ("torch.ones(6)", "V = torch.ones(1)"),
    "tensor_rank": ("torch.ones(6)", "V = torch.ones(2, 6)"),
    "tensor_dtype": ("torch.ones(6)", "V = V.double()"),
    "tensor_strides": ("torch.ones(6)", "V = torch.ones(12)[::2]"),
    "tensor_gradient": ("torch.ones(6)", "V.requires_grad_()"),
    "tensor_to_parameter": ("torch.ones(6)", "V = torch.nn.Parameter(V)"),
    "tensor_to_frozen_parameter": ("torch.ones(6)", "V = torch.nn.Parameter(V, False)"),
    "tensor_resized": ("torch.ones(6)", "V.resize_(1)"),
    "tensor_to_number": ("torch.ones(6)", "V = 2"),
    "tensors": ("[torch.ones(6), torch.ones(6)]", "V[1] = V[0]"),
    "array_dtype": ("numpy.arange(6.0)", "V = V.astype('int16')"),
    "array_strides": ("numpy.arange(6.0)", "V = numpy.arange(12.0)[::2]"),
    "weak_set": ("weakref.WeakSet([K])", "E = Other(); V.add(E)"),
    "c_method": ("[1, 2].copy", "V = V.__self__.pop"),
    "function": ("one", "V = two"),
    "c_function": ("torch.sin", "V = torch.cos"),
    "function_code": ("one", "V.__code__ = two.__code__"),
    "function_default": ("one", "V.__defaults__ = (3,)"),
    "instance": ("Box()", "V = Box(2)"),
    "instance_attribute": ("Box()", "V.n = 2"),
    "instance_attribute_added": ("Box()", "V.extra = 2"),
    "instance_attribute_removed": ("Box()", "del V.n"),
    "instance_class": ("Box()", "V.__class__ = Other"),
    "instance_method": ("Box()", "V.run = two"),
    "class_method": ("Box()", "Box.run = lambda self, x: x + 7"),
    "class_length": ("Box()", "Box.__len__ = lambda self: 0"),
    "class_equality": ("Box()", "Box.__eq__ = lambda self, other: True"),
    "class_bool": ("Box()", "Box.__bool__ = lambda self: False"),
    "class_item": ("Box()", "Box.__getitem__ = lambda self, key: (2, 3)[key]"),
    "class_call": ("Box()", "Box.__call__ = lambda self, x: x + 2"),
    "class_contains": ("Box()", "Box.__contains__ = lambda self, key: True"),
    "class_multiplied": ("Box()", "Box.__rmul__ = lambda self, x: x + 5"),
    "class_bases": ("Child()", "Child.__bases__ = (Other,)"),
    "class_registered": ("Box()", "Registered.register(Box)"),
    "class_of_another": ("Box", "V = Other"),
    "same_as_constant": ("Box()", "V = K"),
    "module_training": ("torch.nn.Dropout(0.0)", "V.eval()"),
    "module_hook": ("torch.nn.Identity()", "V._forward_hooks[0] = lambda module, args, out: out * 2"),
    "module_buffer": ("counted()", "V.count.fill_(4)"),
    "switch": ("switched(True)", "switched(False)"),  # back on when the first value is made again
    "grad_mode": ("with_gradients(True)", "with_gradients(False)"),
    "dropped": ("1", None),
}  # fmt: skip

READERS = {
    "product": "x * v",
    "truth": "x if v else -x",
    "type": "(x + 1, type(v).__name__)",
    "length": "x + len(v)",
    "first": "x * v[0]",
    "key": "x * v['a']",
    "items": "[x * i for i in v]",
    "unpacked": "(lambda pair: x * pair[0] + pair[1])(tuple(v))",
    "keywords": "(lambda a, b=4: x * a + b)(**v)",
    "called": "v(x)",
    "asked": "(x + 1, v())",
    "attribute": "x * v.n",
    "method": "v.run(x)",
    "has_attribute": "x + hasattr(v, 'extra')",
    "equal": "x + (v == K)",
    "identity": "x + (v is K)",
    "contains": "x + ('a' in v)",
    "text": "(x + 1, f'{v}' if isinstance(v, (int, float, str, list)) else '')",
    "instance_of": "x + isinstance(v, (int, list, Other, Registered))",
    "callable": "x + callable(v)",
    "facts": "(x + 1, v.shape, v.dtype, v.stride(), v.requires_grad)",
    "cast": "x.to(v)",
    "index": "x[v]",
    "returned": "(x + 1, v)",
    "kept": "{'v': [v], 'x': x - 1}",
    "same_twice": "x + (v[0] is v[1])",
    "values": "[x * i for i in v.values()]",
    "doubled": "(x + 1, v + v)",
    "written": "(x + 1, v[0].add_(1), v[1] * 2)",
    "array": "(x + 1, torch.from_numpy(v).dtype, torch.from_numpy(v).stride())",
    "buffer": "x * v.count.item()",
    "switch": "x + v.enabled",
    "training": "x + v.training",
}


def scenario_of(place: Place, change: tuple[str, str | None], reader: str) -> Callable[..., None]:
    """Called twice, and twice after the change; then with another value put there, which is a change of its own."""
    first, changed = change

    def scenario(start: Callable[..., Any]) -> None:
        space: dict[str, Any] = {"__name__": "generated"}
        exec(PRELUDE, space)
        exec(
            f"K = Box(1)\nV = {first}\n{place.make}\ndef program(x, h):\n    v = {place.get}\n    return {reader}\n",
            space,
        )
        call = start(space["program"])

        def twice() -> None:
            for _ in range(2):
                call(torch.arange(6.0), space["h"])

        twice()
        exec(place.drop if changed is None else f"{changed}\n{place.put}", space)
        twice()
        again = f"try:\n    {place.put}\nexcept Exception:  # there is no such place any more\n"
        exec(f"V = {first}\n{again}" + indent(place.make, "    "), space)
        twice()

    return scenario
