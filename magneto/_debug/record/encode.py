"""Objects as rows of a table: values, and what they lead to. An object that is reached twice is one row.

What has a name in a library is that name. Functions and classes of the program are their code's place in the program's
text, and what they read. What can't be stored so is `Refused`, with the way that led to it; where it was only read by
another function than the frame's own, it is left out, and the record says so.
"""

from __future__ import annotations

import base64
import collections
import enum
import functools
import math
import re
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch

from magneto import _C, _forward
from magneto._debug.record import classes, sources, tensors
from magneto._module import OptimizedModule

Row = dict[str, Any]


class Refused(Exception):
    """Something can't be recorded: `path` leads to it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class Encoder:
    """Makes the table. `objects`: its rows."""

    def __init__(self, own: types.FunctionType | None = None) -> None:
        self._own = own  # a function whose text is wanted, though a library has it
        self.objects: list[Row] = []
        self.storages = tensors.Storages()
        self.files = sources.Files()
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.left_out: dict[str, str] = {}  # path -> why
        self.imports: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._order: list[int] = []  # keys of _numbers in the order of rows
        self._alive: list[Any] = []
        self._spaces: dict[str, dict[str, Any]] = {}  # the real ones
        self._modules: set[str] = set()  # of the program, that something reads as an object
        self._names: dict[str, None] = {}  # in all code that is recorded
        self._refused: dict[int, Refused] = {}

    # -- values

    def value(self, x: Any, path: str) -> Any:
        """What stands for an object in JSON."""
        kind = type(x)
        if x is None or kind is bool or kind is int or kind is str:
            return x
        if kind is float:
            return x if math.isfinite(x) else {"float": repr(x)}
        return {"at": self.row(x, path)}

    def row(self, x: Any, path: str) -> int:
        """The number of an object's row."""
        if id(x) in self._numbers:
            return self._numbers[id(x)]
        if id(x) in self._refused:
            raise Refused(path, self._refused[id(x)].why)
        number = len(self.objects)
        row: Row = {}
        self.objects.append(row)
        self._numbers[id(x)] = number
        self._order.append(id(x))
        self._alive.append(x)
        row.update(self._encode(x, path))
        return number

    def optional(self, x: Any, path: str) -> Any:
        """The same of what the frame may not need: left out where it can't be recorded; NotImplemented then."""
        rows, storages = len(self.objects), len(self.storages.rows)
        try:
            return self.value(x, path)
        except Refused as refused:
            for key in self._order[rows:]:
                del self._numbers[key]
            del self._order[rows:], self.objects[rows:]
            self.storages.forget(storages)
            self._refused[id(x)] = refused
            self._alive.append(x)
            self.left_out[path] = str(refused)
            return NotImplemented

    def members(self, items: Iterable[tuple[str, Any]], path: str, optional: bool = False) -> dict[str, Any]:
        """Values by name."""
        found = {}
        for name, x in items:
            way = f"{path}.{name}" if path else name
            made = self.optional(x, way) if optional else self.value(x, way)
            if made is not NotImplemented:
                found[name] = made
        return found

    def _encode(self, x: Any, path: str) -> Row:
        kind = type(x)
        if (encode := _KINDS.get(kind)) is not None:
            return encode(self, x, path)
        if isinstance(x, torch.Tensor):
            return self._tensor(x, path)
        named = sources.name_of(x) if callable(x) or isinstance(x, torch.Generator) else None
        if named is not None:
            return self.imported(*named)
        if isinstance(x, type):
            return classes.encode(self, x, path)
        if isinstance(x, enum.Enum):
            known = {"name": x.name} if x.name in kind.__members__ else {"value": self.value(x._value_, path)}
            return {"kind": "enum", "class": self.value(kind, path), **known}
        if isinstance(x, numpy.generic):
            return {**self._array(numpy.asarray(x), path), "scalar": True}
        if isinstance(x, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return {"kind": "operator", "name": str(x)}
        return self._instance(x, path)

    def imported(self, module: str, qualname: str) -> Row:
        """A library's object, by its name."""
        self.imports.add(module)
        return {"kind": "import", "module": module, "name": qualname}

    def items(self, x: Iterable[Any], path: str) -> list[Any]:
        """Values in order."""
        return [self.value(item, f"{path}[{i}]") for i, item in enumerate(x)]

    def pairs(self, x: Any, path: str) -> list[Any]:
        """Of a mapping."""
        return [
            [self.value(k, f"a key of {path}"), self.value(v, f"{path}[{k!r}]" if _is_short(k) else f"{path}[...]")]
            for k, v in dict.items(x)
        ]

    # -- tensors and arrays

    def _tensor(self, x: torch.Tensor, path: str) -> Row:
        plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        kind = type(x)
        if kind not in plain:
            raise Refused(path, f"a tensor of class {kind.__qualname__} can't be recorded")
        if why := tensors.refusal(x):
            raise Refused(path, why)
        row: Row = {"kind": "tensor", "storage": self.storages.number(x), **tensors.describe(x)}
        if kind is not torch.Tensor:
            row["class"] = "Parameter"
        state = self.members(x.__dict__.items(), path, optional=True)
        if state:
            row["state"] = state
        if x.is_leaf and x.grad is not None:
            row["grad"] = self.value(x.grad, f"{path}.grad")
        return row

    def _array(self, x: Any, path: str) -> Row:
        if x.dtype.hasobject or x.dtype.names is not None:
            raise Refused(path, f"an array of {x.dtype} can't be recorded")
        data = base64.b64encode(numpy.ascontiguousarray(x).tobytes()).decode()
        return {"kind": "array", "dtype": x.dtype.str, "shape": list(x.shape), "data": data}

    # -- functions

    def _function(self, x: types.FunctionType, path: str) -> Row:
        if x is not self._own and (named := sources.name_of(x)) is not None:
            return self.imported(*named)
        if x.__code__.co_filename == _forward.__file__ and hasattr(x, "__wrapped__"):  # of magneto.disable
            recursive = x.__code__.co_name == "wrapper"
            return {"kind": "disabled", "of": self.value(x.__wrapped__, path), "recursive": recursive}
        try:
            code = self.files.place(x.__code__)
        except sources.NoSource as reason:
            raise Refused(path, str(reason)) from None
        row: Row = {"kind": "function", "code": code, "name": x.__name__, "qualname": x.__qualname__}
        row["module"] = x.__module__
        row["globals"] = self._namespace(x)
        row["closure"] = [
            self.value(cell, f"{name} of {path}")
            for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
        ]
        row["defaults"] = self.items(x.__defaults__ or (), f"a default of {path}")
        row["kwdefaults"] = self.members((x.__kwdefaults__ or {}).items(), f"a default of {path}")
        row["state"] = self.members(x.__dict__.items(), path, optional=True)
        self._names.update(dict.fromkeys(sources.names_in(x.__code__)))
        return row

    def _namespace(self, x: types.FunctionType) -> str:
        """The globals of a function: of a library the module's own, of the program those that recorded code reads."""
        space = x.__globals__
        name = space.get("__name__", "__main__")
        if sources.is_library(str(name)):
            self.imports.add(str(name))
            return str(name)
        while self._spaces.setdefault(name, space) is not space:
            name += "'"  # another run of a module of that name
        recorded = self.namespaces.setdefault(name, {})
        for read in sources.globals_read(x.__code__):
            if read in space and read not in recorded:
                recorded[read] = None  # being recorded
                made = self.optional(space[read], f"global {read} of {x.__qualname__}")
                if made is NotImplemented:
                    del recorded[read]
                else:
                    recorded[read] = made
        return str(name)

    def _cell(self, x: types.CellType, path: str) -> Row:
        try:
            content = x.cell_contents
        except ValueError:
            return {"kind": "cell"}
        return {"kind": "cell", "content": self.value(content, path)}

    def _method(self, x: types.MethodType, path: str) -> Row:
        return {
            "kind": "method",
            "function": self.value(x.__func__, path),
            "self": self.value(x.__self__, f"__self__ of {path}"),
        }

    def _builtin(self, x: Any, path: str) -> Row:
        if (named := sources.name_of(x)) is not None:
            return self.imported(*named)
        own = getattr(x, "__self__", None)
        if own is None or isinstance(own, types.ModuleType):
            raise Refused(path, f"the C function {x.__name__} has no name to import it by")
        return {"kind": "attribute", "of": self.value(own, f"__self__ of {path}"), "name": x.__name__}

    def _descriptor(self, x: Any, path: str) -> Row:
        return {"kind": "attribute", "of": self.value(x.__objclass__, path), "name": x.__name__}

    def _module(self, x: types.ModuleType, path: str) -> Row:
        name = x.__name__
        if sources.is_library(name):
            return self.imported(name, "")
        self._spaces.setdefault(name, vars(x))
        self.namespaces.setdefault(name, {})
        self._modules.add(name)
        return {"kind": "module", "name": name}

    def finish(self) -> None:
        """Modules of the program that something reads: of their attributes those that recorded code names."""
        done: set[tuple[str, str]] = set()
        more = True
        while more:
            more = False
            for module in sorted(self._modules):
                for name in list(self._names):
                    space = self._spaces[module]
                    if name in self.namespaces[module] or name not in space or (module, name) in done:
                        continue
                    done.add((module, name))
                    made = self.optional(space[name], f"{module}.{name}")
                    if made is not NotImplemented:
                        self.namespaces[module][name] = made
                        more = True

    # -- objects of classes

    def _instance(self, x: Any, path: str) -> Row:
        kind = type(x)
        what = f"an object of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
        if isinstance(x, (torch.jit.ScriptModule, torch.fx.GraphModule)) or kind in _UNSTORABLE:
            raise Refused(path, f"{what} can't be recorded")
        base = classes.content_base(kind)
        try:
            if base is None:
                object.__new__(kind)
        except TypeError:
            raise Refused(path, f"{what} can't be recorded: it is made in C, and may hold what has no text") from None
        row: Row = {"kind": "instance", "class": self.value(kind, f"type of {path}")}
        if base is not None:
            row["base"] = self.imported(base.__module__, base.__qualname__)["name"]
            row["content"] = self._content(x, base, path)
        try:
            own = object.__getattribute__(x, "__dict__")
        except AttributeError:
            own = {}
        row["state"] = [[name, self.value(v, f"{path}.{name}")] for name, v in own.items()]
        row["slots"] = self.members(classes.slots_of(x), path)
        return row

    def _content(self, x: Any, base: Any, path: str) -> Any:
        """What an object is beside its attributes: items, text, number, arguments."""
        if issubclass(base, dict):
            return self.pairs(x, path)
        if base in (str, int, float):
            return self.value(base(x), path)
        if base is BaseException:
            return self.items(x.args, path)
        return self.items(base.__iter__(x), path)

    def _weakref(self, x: weakref.ref[Any], path: str) -> Row:
        return {"kind": "weakref", "to": self.value(x(), path)}

    def _compiled(self, x: Any, path: str) -> Row:
        is_module = isinstance(x, OptimizedModule)
        of = x._orig_mod if is_module else x._torchdynamo_orig_callable
        options = x._core_options if is_module else x.__reduce__()[1][1]
        return {
            "kind": "compiled",
            "of": self.value(of, path),
            "options": self.value(options, f"options of {path}"),
            "module": is_module,
        }

    def _partial(self, x: functools.partial[Any], path: str) -> Row:
        return {
            "kind": "partial",
            "function": self.value(x.func, path),
            "arguments": self.items(x.args, path),
            "keywords": self.members(x.keywords.items(), path),
        }

    def _cache(self, x: Any, path: str) -> Row:
        if (named := sources.name_of(x)) is not None:
            return self.imported(*named)
        return {"kind": "lru_cache", "of": self.value(x.__wrapped__, path), **x.cache_parameters()}


def _is_short(key: Any) -> bool:
    return isinstance(key, (str, int, float)) and len(repr(key)) < 40


_UNSTORABLE = (types.GeneratorType, types.CoroutineType, types.FrameType, types.TracebackType, types.CodeType)

_Encode = Callable[[Encoder, Any, str], Row]


def _sequence(kind: str) -> _Encode:
    return lambda encoder, x, path: {"kind": kind, "items": encoder.items(x, path)}


def _text(kind: str, of: Callable[[Any], Any] = str) -> _Encode:
    return lambda encoder, x, path: {"kind": kind, "value": of(x)}


def _pairs(kind: str) -> _Encode:
    return lambda encoder, x, path: {"kind": kind, "items": encoder.pairs(x, path)}


def _part(kind: str, *names: str) -> _Encode:
    return lambda encoder, x, path: {
        "kind": kind,
        "parts": [encoder.value(getattr(x, name), f"{path}.{name}") for name in names],
    }


_KINDS: dict[type, _Encode] = {
    tuple: _sequence("tuple"),
    list: _sequence("list"),
    set: _sequence("set"),
    frozenset: _sequence("frozenset"),
    dict: _pairs("dict"),
    collections.OrderedDict: _pairs("OrderedDict"),
    collections.Counter: _pairs("Counter"),
    collections.deque: lambda e, x, path: {"kind": "deque", "items": e.items(x, path), "maxlen": x.maxlen},
    collections.defaultdict: lambda e, x, path: {
        "kind": "defaultdict",
        "factory": e.value(x.default_factory, f"{path}.default_factory"),
        "items": e.pairs(x, path),
    },
    types.MappingProxyType: lambda e, x, path: {"kind": "mappingproxy", "of": e.value(dict(x), path)},
    types.SimpleNamespace: lambda e, x, path: {"kind": "namespace", "state": e.members(vars(x).items(), path)},
    bytes: _text("bytes", lambda x: base64.b64encode(x).decode()),
    bytearray: _text("bytearray", lambda x: base64.b64encode(x).decode()),
    complex: _text("complex", lambda x: [repr(x.real), repr(x.imag)]),
    slice: _part("slice", "start", "stop", "step"),
    range: _part("range", "start", "stop", "step"),
    types.EllipsisType: _text("constant", lambda x: "Ellipsis"),
    types.NotImplementedType: _text("constant", lambda x: "NotImplemented"),
    torch.dtype: _text("dtype", lambda x: str(x).removeprefix("torch.")),
    torch.layout: _text("torch", lambda x: str(x).removeprefix("torch.")),
    torch.memory_format: _text("torch", lambda x: str(x).removeprefix("torch.")),
    torch.device: _text("device"),
    torch.Size: _text("Size", list),
    torch.Generator: lambda e, x, path: {
        "kind": "generator",
        "device": str(x.device),
        "state": base64.b64encode(bytes(x.get_state().tolist())).decode(),
    },
    numpy.ndarray: Encoder._array,
    re.Pattern: lambda e, x, path: {"kind": "pattern", "pattern": e.value(x.pattern, path), "flags": x.flags},
    types.FunctionType: Encoder._function,
    types.MethodType: Encoder._method,
    types.BuiltinFunctionType: Encoder._builtin,
    types.MethodWrapperType: Encoder._builtin,
    types.MethodDescriptorType: Encoder._descriptor,
    types.WrapperDescriptorType: Encoder._descriptor,
    types.ClassMethodDescriptorType: Encoder._descriptor,
    types.GetSetDescriptorType: Encoder._descriptor,
    types.MemberDescriptorType: Encoder._descriptor,
    types.ModuleType: Encoder._module,
    types.CellType: Encoder._cell,
    types.GenericAlias: _part("alias", "__origin__", "__args__"),
    staticmethod: _part("staticmethod", "__func__"),
    classmethod: _part("classmethod", "__func__"),
    property: _part("property", "fget", "fset", "fdel", "__doc__"),
    functools.cached_property: lambda e, x, path: {
        "kind": "cached_property",
        "parts": [e.value(x.func, path), x.attrname],
    },
    functools.partial: Encoder._partial,
    type(functools.lru_cache(len)): Encoder._cache,
    weakref.ref: Encoder._weakref,
    _C.CompiledFunction: Encoder._compiled,
    OptimizedModule: Encoder._compiled,
}
