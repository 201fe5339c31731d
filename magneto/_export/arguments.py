"""The arguments of what is exported: their names in the graph, and which of their sizes vary."""

from __future__ import annotations

import collections
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from magneto import exc

Bounds = tuple[str, int | None, int | None]  # the name of a size, its least and its largest value
Path = tuple[Any, ...]

# A size in the sources of the captured function's inputs.
SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")


class Leaf(NamedTuple):
    """A tensor or constant among the arguments."""

    name: str
    path: Path  # parameter, then keys
    where: str  # as messages say it: "*args[0]", "**kwargs['mask']"
    value: Any
    places: tuple[int, ...] = ()  # which child of each container, after the parameter
    is_size: bool = False  # an int that varies: captured as the size of a tensor


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """One for each positional argument."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names, *(f"args_{i}" for i in range(len(names), count))][:count]


def by_names(function: Callable[..., Any], dynamic_shapes: Any, names: Sequence[str]) -> Any:
    """`dynamic_shapes` by parameter, where that is `*args` or `**kwargs`: by the names of their items."""
    if not isinstance(dynamic_shapes, Mapping):
        return dynamic_shapes
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dynamic_shapes
    by_name: dict[str, Any] = {}
    for name, found in dynamic_shapes.items():
        kind = parameters[name].kind if name in parameters else None
        if kind is inspect.Parameter.VAR_POSITIONAL and isinstance(found, (tuple, list)):
            items = names[list(parameters).index(name) :]
            if len(items) != len(found):
                raise exc.InvalidValue(f"dynamic_shapes of *{name} has {len(found)} entries; it has {len(items)} items")
            by_name.update(zip(items, found, strict=True))
        elif kind is inspect.Parameter.VAR_KEYWORD and isinstance(found, Mapping):
            by_name.update(found)
        elif found is not None or kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            by_name[name] = found
    return by_name


def leaves_of(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """The leaves of (args, kwargs), in the order in which they are flattened, with names of their own."""
    given: set[int] = set()
    taken: set[str] = {"self", "target", "constants", "unflatten"}
    leaves = []
    found, spec = pytree.tree_flatten_with_path((args, dict(kwargs)))
    for (path, value), places in zip(found, _places(spec), strict=True):
        keys = tuple(_key(entry) for entry in path)
        first = names[keys[1]] if keys[0] == 0 else str(keys[1])
        full = (first, *keys[2:])
        name = identifier("_".join(map(str, full)))
        while name in taken:
            name += "_1"
        taken.add(name)
        where = ("*args" if keys[0] == 0 else "**kwargs") + "".join(f"[{key!r}]" for key in keys[1:])
        if isinstance(value, torch.Tensor):
            if id(value) in given:  # one tensor given twice is two arguments
                value = value.detach().clone().requires_grad_(value.requires_grad)
            given.add(id(value))
        leaves.append(Leaf(name, full, where, value, places[2:]))
    return leaves


def _places(spec: Any) -> list[tuple[int, ...]]:
    """Of each leaf: which child of which child it is."""
    if spec.is_leaf():
        return [()]
    return [(i, *rest) for i, child in enumerate(spec.children()) for rest in _places(child)]


def with_sizes(leaves: Sequence[Leaf], sizes: Sizes) -> list[Leaf]:
    """The same, with ints that vary as sizes of tensors, which a capture knows how to leave open."""
    return [_as_size(leaf) if leaf.name in sizes.numbers and not leaf.is_size else leaf for leaf in leaves]


def _as_size(leaf: Leaf) -> Leaf:
    return leaf._replace(value=torch.zeros(1).expand(leaf.value), is_size=True)


def last_name(source: str) -> str:
    """Of `G['table']` and `L['self'].scale`: table, scale."""
    return str(re.findall(r"\w+", source)[-1])


def identifier(text: str) -> str:
    """A name in code."""
    name = re.sub(r"\W", "_", text.lower()) or "_"
    return f"_{name}" if name[0].isdigit() else name


def _key(entry: Any) -> Any:
    for attribute in ("idx", "key", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


# -- sizes that vary


class Linear(NamedTuple):
    """A size that is `factor * root + term`."""

    leaf: str
    dim: int
    root: str
    factor: int
    term: int


def _size_text(leaf: str, dim: int) -> str:
    return f"L['{leaf}'].size()[{dim}]"


class Sizes(NamedTuple):
    """Which sizes of the leaves vary: by leaf, by dimension."""

    asked: dict[str, dict[int, Bounds]]  # an error where the program can't do without the number
    tried: dict[str, dict[int, Bounds]]  # the program's number where it can't
    linear: list[Linear]
    numbers: set[str]  # ints that vary: dimension 0 of such a leaf

    def by_dimension(self) -> dict[tuple[str, int], Bounds]:
        """All of them: (argument, dimension) -> bounds."""
        both = (self.asked, self.tried)
        return {(name, dim): bounds for all in both for name, dims in all.items() for dim, bounds in dims.items()}

    def named(self) -> list[tuple[str, int, str, int | None, int | None]]:
        """Those that torch.export.Dim names: argument, dimension, name, least, most."""
        return [
            (*place, name, low, high) for place, (name, low, high) in self.by_dimension().items() if name.isidentifier()
        ]

    def relations(self) -> list[str]:
        """What must hold of sizes that follow from others, as conditions."""
        places = {bounds[0]: place for place, bounds in self.by_dimension().items()}
        texts = []
        for each in self.linear:
            size = _size_text(each.leaf, each.dim)
            if each.root in places:
                texts.append(f"{size} == {each.factor} * {_size_text(*places[each.root])} + {each.term}")
            else:
                texts.append(f"({size} - {each.term}) % {each.factor} == 0")
        return texts

    def without(self, place: tuple[str, int]) -> Sizes | None:
        """The same, with the program's number for a size that was only tried; None if it is none of these."""
        if place[1] not in self.tried.get(place[0], {}):
            return None
        rest = {dim: bounds for dim, bounds in self.tried[place[0]].items() if dim != place[1]}
        return self._replace(tried={**self.tried, place[0]: rest}, numbers=self.numbers - {place[0]})

    def declared(self, leaves: Sequence[Leaf]) -> dict[str, tuple[Any, ...]]:
        """For the core: parameter -> dimensions, each None or (name, low, high, in several places)."""
        both = {name: {**self.tried.get(name, {}), **self.asked.get(name, {})} for name in {*self.asked, *self.tried}}
        uses = collections.Counter(bounds[0] for dims in both.values() for bounds in dims.values())
        tensors = {leaf.name: leaf.value for leaf in with_sizes(leaves, self)}
        return {
            name: tuple((*dims[i], uses[dims[i][0]] > 1) if i in dims else None for i in range(tensors[name].dim()))
            for name, dims in both.items()
        }


def sizes_of(dynamic_shapes: Any, names: Sequence[str], leaves: Sequence[Leaf], args: Any, kwargs: Any) -> Sizes:
    """Reads `dynamic_shapes`: a dict by parameter, or a tuple or list by position; None: no size varies."""
    sizes = Sizes({}, {}, [], set())
    if dynamic_shapes is None:
        return sizes
    known = {leaf.path[0] for leaf in leaves}
    if isinstance(dynamic_shapes, Mapping):
        by_parameter = dict(dynamic_shapes)
        for name in by_parameter:
            if name not in known and name not in names and name not in kwargs:
                raise exc.InvalidName("argument in dynamic_shapes", str(name), sorted(map(str, known)))
    elif isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) != len(args) + len(kwargs):
            raise exc.InvalidValue(
                f"dynamic_shapes has {len(dynamic_shapes)} entries; there are {len(args) + len(kwargs)} arguments"
            )
        by_parameter = dict(zip([*names, *kwargs], dynamic_shapes, strict=True))
    else:
        raise exc.InvalidValue(f"dynamic_shapes takes a dict, tuple or list, not {dynamic_shapes!r}")
    for leaf in leaves:
        found: Any = by_parameter.get(leaf.path[0])
        for key, place in zip(leaf.path[1:], leaf.places, strict=True):
            found = None if found is None else _entry(found, key, place, leaf)
        if isinstance(leaf.value, torch.Tensor):
            _read_tensor(leaf, found, sizes)
        elif type(leaf.value) is int and _varies(found):
            if leaf.value < 2:
                raise exc.NotYet(
                    f"dynamic_shapes of {leaf.where}: ints vary from 2 on, and the example is {leaf.value}"
                )
            sizes.numbers.add(leaf.name)
            _read_dimension(_as_size(leaf), 0, found, sizes)
        elif _varies(found):
            raise exc.NotYet(f"dynamic_shapes of {leaf.where}, a {type(leaf.value).__name__}: sizes and ints vary")
    tensors = {leaf.name: leaf.value for leaf in with_sizes(leaves, sizes)}
    for relation in sizes.relations():
        if not eval(relation, {"L": tensors}):  # a text that we wrote
            raise exc.InvalidValue(f"dynamic_shapes: the example does not fulfil {relation}")
    return sizes


def _varies(what: Any) -> bool:
    kind = type(what).__name__
    return kind in ("Dim", "_DerivedDim") or (kind == "_DimHint" and what.type.name != "STATIC")


def _entry(found: Any, key: Any, place: int, leaf: Leaf) -> Any:
    """What is said of a part of an argument: in a dict by its key, in a list by its place, or by its attribute."""
    try:
        if isinstance(found, Mapping):
            return found.get(key)
        if isinstance(found, (tuple, list)):
            return found[place]
        return getattr(found, key) if isinstance(key, str) else found[key]
    except (TypeError, IndexError, KeyError, AttributeError):
        raise exc.InvalidValue(f"dynamic_shapes has no entry for {leaf.where}: {found!r}") from None


def _read_tensor(leaf: Leaf, entry: Any, sizes: Sizes) -> None:
    if entry is None:
        return
    if isinstance(entry, Mapping):
        dims = dict(entry)
    elif isinstance(entry, (tuple, list)):
        if len(entry) != leaf.value.dim():
            raise exc.InvalidValue(
                f"dynamic_shapes of {leaf.where} has {len(entry)} entries; it has {leaf.value.dim()} dimensions"
            )
        dims = dict(enumerate(entry))
    else:
        raise exc.InvalidValue(
            f"dynamic_shapes of {leaf.where} takes a dict from dimensions, or a tuple, not {entry!r}"
        )
    for dim, what in dims.items():
        if not isinstance(dim, int) or not -leaf.value.dim() <= dim < leaf.value.dim():
            raise exc.InvalidValue(f"dynamic_shapes of {leaf.where}: it has no dimension {dim!r}")
        _read_dimension(leaf, dim % leaf.value.dim(), what, sizes)


def _read_dimension(leaf: Leaf, dim: int, what: Any, sizes: Sizes) -> None:
    where, size = f"{leaf.where}.shape[{dim}]", leaf.value.shape[dim]
    kind = type(what).__name__
    if what is None or (kind == "_DimHint" and what.type.name == "STATIC"):
        return
    if type(what) is int:
        if what != size:
            raise exc.InvalidValue(f"dynamic_shapes: {where} is {size} in the example, not {what}")
        return
    if kind == "_DimHint":
        to = sizes.tried if what.type.name == "AUTO" else sizes.asked
        bounds = (where, getattr(what, "min", None), getattr(what, "max", None))
    elif kind in ("Dim", "_DerivedDim"):
        to, bounds = sizes.asked, (what.__name__, what.min, what.max if isinstance(what.max, int) else None)
    else:
        raise exc.InvalidValue(f"dynamic_shapes: {where} takes a torch.export.Dim, a number or None, not {what!r}")
    if kind == "_DerivedDim":
        term = what.fn(0)
        sizes.linear.append(Linear(leaf.name, dim, what.root.__name__, what.fn(1) - term, term))
    _, low, high = bounds
    if (low is not None and size < low) or (high is not None and size > high):
        raise exc.InvalidValue(f"dynamic_shapes: {where} is {size} in the example, outside of [{low}, {high}]")
    to.setdefault(leaf.name, {})[dim] = bounds


def of_constant(violation: exc.ConstraintViolation, sizes: Sizes) -> exc.ConstraintViolation:
    """The core's error for a size that has one value alone, with the suggestion to say so."""
    found = re.match(
        rf"{SIZE.pattern} was marked as dynamic, but the program is valid for the size (\d+) alone", str(violation)
    )
    bounds = sizes.by_dimension().get((found[1], int(found[2]))) if found else None
    if not found or not bounds or not bounds[0].isidentifier():
        return violation
    return exc.ConstraintViolation(f"{violation}\n\nSuggested fixes:\n  {bounds[0]} = {found[3]}")
