"""A record's rows as objects again. This runs code: imports of libraries, and the making of the program's classes."""

from __future__ import annotations

import base64
import builtins
import collections
import functools
import linecache
import os
import re
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from magneto import _C, exc
from magneto._debug.record import classes, container, sources, tensors
from magneto._module import OptimizedModule

Row = Mapping[str, Any]


class Decoder:
    """Makes the objects of a record, each once."""

    def __init__(self, record: container.Record) -> None:
        self._record = record
        self._rows: list[Row] = record.data["objects"]
        self._made: dict[int, Any] = {}
        self._making: set[int] = set()
        self._later: tuple[list[Callable[[], None]], list[Callable[[], None]]] = ([], [])
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._spaces: dict[str, dict[str, Any]] = {}
        self._modules: dict[str, types.ModuleType] = {}
        self._codes: dict[str, types.CodeType] = {}

    def value(self, made: Any) -> Any:
        """What a value in JSON stands for; what it leads to is not there until `finish`."""
        if not isinstance(made, dict):
            return made
        if "float" in made:
            return float(made["float"])
        return self._object(made["at"])

    def finish(self) -> None:
        """Fills what objects lead to: first attributes and cells, then what hashes its items."""
        first, second = self._later
        while first or second:
            (first if first else second).pop(0)()

    def _object(self, number: int) -> Any:
        if number in self._made:
            return self._made[number]
        if number in self._making:
            raise container.damaged(self._record, f"object {number} is a part of itself")
        self._making.add(number)
        row = self._rows[number]
        make = _MAKE.get(row["kind"])
        if make is None:
            raise container.damaged(self._record, f"objects of kind {row['kind']!r} are not known")
        self._made[number] = made = make(self, row)
        self._making.discard(number)
        return made

    def _fill(self, fill: Callable[[], Any], hashes: bool = False) -> None:
        self._later[hashes].append(fill)

    # -- libraries

    def _import(self, row: Row) -> Any:
        try:
            return sources.resolve(row["module"], row["name"])
        except ImportError as error:
            raise exc.InvalidRecord(
                f"The record needs the module {row['module']}: {error}. Install it, or put its folder on PYTHONPATH."
            ) from None
        except AttributeError:
            raise exc.InvalidRecord(
                f"The record needs {row['name']} of the module {row['module']}, which has none here: install the "
                f"version that the record was made with."
            ) from None

    def _operator(self, row: Row) -> Any:
        value: Any = torch.ops
        for part in row["name"].split("."):
            value = getattr(value, part)
        return value

    # -- containers

    def items(self, row: Any) -> list[Any]:
        """Values in order."""
        return [self.value(x) for x in row]

    def _list(self, row: Row) -> Any:
        made: list[Any] = []
        self._fill(lambda: made.extend(self.items(row["items"])))
        return made

    def _set(self, row: Row) -> Any:
        made: set[Any] = set()
        self._fill(lambda: made.update(self.items(row["items"])), hashes=True)
        return made

    def _mapping(self, row: Row) -> Any:
        made: Any = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}[
            row["kind"]
        ]()
        self._fill(lambda: self._fill_ordered(made, row["items"]))
        return made

    def _fill_ordered(self, made: Any, pairs: Any) -> None:
        set_item = (
            collections.OrderedDict.__setitem__ if isinstance(made, collections.OrderedDict) else dict.__setitem__
        )
        items = [(self.value(k), self.value(v)) for k, v in pairs]

        def fill() -> None:
            for key, x in items:
                set_item(made, key, x)

        if all(isinstance(key, str) for key, _ in items):
            fill()
        else:
            self._fill(fill, hashes=True)

    def _defaultdict(self, row: Row) -> Any:
        made: Any = collections.defaultdict(self.value(row["factory"]))
        self._fill(lambda: self._fill_ordered(made, row["items"]))
        return made

    def _deque(self, row: Row) -> Any:
        made: Any = collections.deque(maxlen=row["maxlen"])
        self._fill(lambda: made.extend(self.items(row["items"])))
        return made

    # -- tensors

    def _tensor(self, row: Row) -> Any:
        number = row["storage"]
        described = self._record.data["storages"][number]
        if number not in self._storages:
            try:
                self._storages[number] = tensors.storage_of(described, self._record.blobs)
            except KeyError as missing:
                raise container.damaged(self._record, f"it lacks {missing}") from None
            except RuntimeError as error:
                raise exc.InvalidRecord(f"The record has tensors on {described['device']}: {error}") from None
        x: Any = tensors.tensor_of(row, self._storages[number], described.get("uses", 1) > 1)
        if row.get("class"):
            x = torch.nn.Parameter(x, requires_grad=row["requires_grad"])
        for name, made in row.get("state", {}).items():
            self._fill(lambda name=name, made=made: x.__dict__.__setitem__(name, self.value(made)))  # type: ignore[misc]
        if "grad" in row:
            self._fill(lambda: setattr(x, "grad", self.value(row["grad"])))
        return x

    def _array(self, row: Row) -> Any:
        flat = numpy.frombuffer(bytearray(base64.b64decode(row["data"])), dtype=row["dtype"])
        made = flat.reshape(row["shape"])
        return made[()] if row.get("scalar") else made

    # -- functions

    def code(self, place: Row) -> types.CodeType:
        """The code object of that place in the program's text."""
        file = place["file"]
        if file not in self._codes:
            text = self._record.data["sources"].get(file)
            if text is None:
                raise container.damaged(self._record, f"it has no text of {file}")
            name = shown_name(file, text, self._record.path)
            try:
                self._codes[file] = sources.compiled(text, name)
            except SyntaxError as error:
                raise exc.InvalidRecord(
                    f"The record's source is none of this Python's ({error}): use the Python that made it."
                ) from None
        found = sources.codes_at(self._codes[file], place["qualname"], place["line"])
        if place["number"] >= len(found):
            raise container.damaged(self._record, f"there is no {place['qualname']} in line {place['line']} of {file}")
        return found[place["number"]]

    def space(self, name: str) -> dict[str, Any]:
        """The globals of a module: the program's from the record, a library's own."""
        if name not in self._spaces:
            if name not in self._record.data["namespaces"]:
                library: types.ModuleType = self._import({"module": name, "name": ""})
                return vars(library)
            module = self._modules[name] = types.ModuleType(name.rstrip("'"))
            space = self._spaces[name] = vars(module)
            space["__builtins__"] = builtins

            def fill() -> None:
                for key, made in self._record.data["namespaces"][name].items():
                    space[key] = self.value(made)

            self._fill(fill)
        return self._spaces[name]

    def _function(self, row: Row) -> Any:
        code = self.code(row["code"])
        cells = tuple(self.value(cell) for cell in row["closure"])
        made = types.FunctionType(code, self.space(row["globals"]), row["name"], None, cells)
        made.__qualname__, made.__module__ = row["qualname"], row["module"]

        def fill() -> None:
            made.__defaults__ = tuple(self.items(row["defaults"])) or None
            made.__kwdefaults__ = {name: self.value(x) for name, x in row["kwdefaults"].items()} or None
            for name, x in row["state"].items():
                made.__dict__[name] = self.value(x)

        self._fill(fill)
        return made

    def _cell(self, row: Row) -> Any:
        cell = types.CellType()
        if "content" in row:
            self._fill(lambda: setattr(cell, "cell_contents", self.value(row["content"])))
        return cell

    def _compiled(self, row: Row) -> Any:
        of, options = self.value(row["of"]), self.value(row["options"])
        self.finish()  # what is compiled is looked at
        return OptimizedModule(of, options) if row["module"] else _C.compile(of, options)

    def _disabled(self, row: Row) -> Any:
        of = self.value(row["of"])
        self.finish()
        return _C.disable(of, row["recursive"])

    # -- objects of classes

    def _instance(self, row: Row) -> Any:
        kind = self.value(row["class"])
        if "content" not in row:
            made = object.__new__(kind)
        else:
            base = classes.content_base(kind)
            assert base is not None
            made = self._with_content(kind, base, row["content"])
        self._fill(lambda: self._fill_state(made, row))
        return made

    def _with_content(self, kind: type, base: Any, content: Any) -> Any:
        if base is BaseException:
            return base.__new__(kind, *self.items(content))
        if base in (str, int, float):
            return base.__new__(kind, self.value(content))
        if base in (tuple, frozenset):
            return base.__new__(kind, self.items(content))
        made = base.__new__(kind)
        if issubclass(base, dict):
            base.__init__(made)
            self._fill(lambda: self._fill_ordered(made, content))
        elif base is set:
            self._fill(lambda: set.update(made, self.items(content)), hashes=True)
        else:
            self._fill(lambda: base.extend(made, self.items(content)))
        return made

    def _fill_state(self, made: Any, row: Row) -> None:
        state = {name: self.value(x) for name, x in row["state"]}
        if state:
            object.__getattribute__(made, "__dict__").update(state)
        for name, x in row["slots"].items():
            slots = [vars(kind)[name] for kind in type(made).__mro__ if name in vars(kind)]
            slots[0].__set__(made, self.value(x))

    def _simple_namespace(self, row: Row) -> Any:
        made = types.SimpleNamespace()
        self._fill(lambda: vars(made).update({name: self.value(x) for name, x in row["state"].items()}))
        return made

    def _weakref(self, row: Row) -> Any:
        target = self.value(row["to"])
        return weakref.ref(target) if target is not None else weakref.ref(_Gone())

    def _generator(self, row: Row) -> Any:
        made = torch.Generator(row["device"])
        made.set_state(torch.tensor(list(base64.b64decode(row["state"])), dtype=torch.uint8))
        return made

    def _module(self, row: Row) -> Any:
        self.space(row["name"])
        return self._modules[row["name"]]


class _Gone:
    pass


def shown_name(file: str, text: str, record: str) -> str:
    """The name under which tracebacks show a recorded text: its own, unless there is another file of that name here."""
    lines = text.splitlines(keepends=True)
    there = linecache.getlines(file) if os.path.exists(file) else []
    if there:
        if all(i < len(there) and there[i] == line for i, line in enumerate(lines) if line.strip()):
            return file
        file = f"{file} of {os.path.basename(record) or 'a record'}"
    linecache.cache[file] = (len(text), None, lines, file)
    return file


def _bytes(kind: type) -> Any:
    return lambda decoder, row: kind(base64.b64decode(row["value"]))


_MAKE: Mapping[str, Callable[[Decoder, Row], Any]] = {
    "import": Decoder._import,
    "operator": Decoder._operator,
    "tuple": lambda d, row: tuple(d.items(row["items"])),
    "frozenset": lambda d, row: frozenset(d.items(row["items"])),
    "list": Decoder._list,
    "set": Decoder._set,
    "dict": Decoder._mapping,
    "OrderedDict": Decoder._mapping,
    "Counter": Decoder._mapping,
    "defaultdict": Decoder._defaultdict,
    "deque": Decoder._deque,
    "mappingproxy": lambda d, row: types.MappingProxyType(d.value(row["of"])),
    "namespace": Decoder._simple_namespace,
    "bytes": _bytes(bytes),
    "bytearray": _bytes(bytearray),
    "complex": lambda d, row: complex(float(row["value"][0]), float(row["value"][1])),
    "slice": lambda d, row: slice(*d.items(row["parts"])),
    "range": lambda d, row: range(*d.items(row["parts"])),
    "constant": lambda d, row: {"Ellipsis": ..., "NotImplemented": NotImplemented}[row["value"]],
    "dtype": lambda d, row: getattr(torch, row["value"]),
    "torch": lambda d, row: getattr(torch, row["value"]),
    "device": lambda d, row: torch.device(row["value"]),
    "Size": lambda d, row: torch.Size(row["value"]),
    "generator": Decoder._generator,
    "tensor": Decoder._tensor,
    "array": Decoder._array,
    "pattern": lambda d, row: re.compile(d.value(row["pattern"]), row["flags"]),
    "function": Decoder._function,
    "disabled": Decoder._disabled,
    "compiled": Decoder._compiled,
    "method": lambda d, row: types.MethodType(d.value(row["function"]), d.value(row["self"])),
    "attribute": lambda d, row: getattr(d.value(row["of"]), row["name"]),
    "module": Decoder._module,
    "cell": Decoder._cell,
    "alias": lambda d, row: types.GenericAlias(*d.items(row["parts"])),
    "staticmethod": lambda d, row: staticmethod(*d.items(row["parts"])),
    "classmethod": lambda d, row: classmethod(*d.items(row["parts"])),
    "property": lambda d, row: property(*d.items(row["parts"])),
    "cached_property": lambda d, row: _cached_property(*d.items(row["parts"])),
    "partial": lambda d, row: functools.partial(
        d.value(row["function"]), *d.items(row["arguments"]), **{k: d.value(x) for k, x in row["keywords"].items()}
    ),
    "lru_cache": lambda d, row: functools.lru_cache(row["maxsize"], row["typed"])(d.value(row["of"])),
    "weakref": Decoder._weakref,
    "enum": lambda d, row: _member(d.value(row["class"]), row, d.value),
    "class": lambda d, row: classes.make(row, d.value),
    "instance": Decoder._instance,
}


def _member(kind: Any, row: Row, value: Callable[[Any], Any]) -> Any:
    return kind[row["name"]] if "name" in row else kind(value(row["value"]))


def _cached_property(function: Any, name: str) -> Any:
    made = functools.cached_property(function)
    made.__set_name__(object, name)
    return made
