"""Classes of the program in records: name, bases and members, from which they are made again."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto._debug.record.encode import Encoder, Row

# What an object may be beside its attributes.
_BASES = (
    *(collections.OrderedDict, dict, list, tuple, set, frozenset, str, int, float, collections.deque),
    BaseException,
)

# Members that the class gets when it is made, or that only tell of it.
_MADE = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__qualname__",
        "__module__",
        "_backward_cls",
        "__dataclass_params__",
        "__dataclass_fields__",
        "__static_attributes__",
        "__firstlineno__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__classdictcell__",
        "__subclasshook__",
    ]
)
_MADE_OF_ENUMS = frozenset(
    [
        "_member_names_",
        "_member_map_",
        "_value2member_map_",
        "_unhashable_values_",
        "_use_args_",
        "_member_type_",
        "_value_repr_",
        "_new_member_",
        "__new__",
        "_generate_next_value_",
        "_flag_mask_",
        "_singles_mask_",
        "_all_bits_",
        "_boundary_",
        "_inverted_",
        "_hashable_values_",
        "_unhashable_values_map_",
    ]
)


def content_base(kind: type) -> type | None:
    """The built-in class whose content an object has."""
    return next((base for base in _BASES if issubclass(kind, base)), None)


def slots_of(x: Any) -> Iterator[tuple[str, Any]]:
    """What an object has in slots."""
    for kind in type(x).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and kind.__flags__ & (1 << 9):
                try:
                    yield name, member.__get__(x)
                except AttributeError:
                    continue


def encode(encoder: Encoder, kind: type, path: str) -> Row:
    """A class without a name in a library."""
    name = kind.__qualname__
    row: Row = {"kind": "class", "name": kind.__name__, "qualname": name, "module": kind.__module__}
    row["meta"] = encoder.value(type(kind), f"type of {path}")
    row["bases"] = [encoder.value(base, f"a base of {path}") for base in kind.__bases__ if base is not typing.Generic]
    members = {key: x for key, x in vars(kind).items() if _is_stored(key, x)}
    if issubclass(kind, enum.Enum):
        row["items"] = [[key, encoder.value(x._value_, f"{path}.{key}")] for key, x in kind.__members__.items()]
        members = {key: x for key, x in members.items() if key not in _MADE_OF_ENUMS and key not in kind.__members__}
    elif issubclass(kind, tuple) and "_field_defaults" in vars(kind):
        row["fields"] = list(kind._fields)  # type: ignore[attr-defined]
        row["defaults"] = encoder.items(kind._field_defaults.values(), path)  # type: ignore[attr-defined]
        known = {"_fields", "_field_defaults", "_make", "_replace", "_asdict", "__new__", "__repr__", "__getnewargs__"}
        members = {
            key: x for key, x in members.items() if key not in known | {"__slots__", "__match_args__", *row["fields"]}
        }
    elif "__dataclass_params__" in vars(kind):
        row["dataclass"] = _dataclass(encoder, kind, path)
        members = {key: x for key, x in members.items() if key != "__slots__" and not _is_made_by_dataclass(x)}
    row["members"] = encoder.members(members.items(), name, optional=True)
    return row


def _is_stored(key: str, x: Any) -> bool:
    return key not in _MADE and not isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType))


def _is_made_by_dataclass(x: Any) -> bool:
    code = getattr(getattr(x, "__wrapped__", x), "__code__", None)
    return isinstance(x, dataclasses.Field) or (
        code is not None and code.co_filename in ("<string>", dataclasses.__file__)
    )


def _dataclass(encoder: Encoder, kind: type, path: str) -> Row:
    params = kind.__dataclass_params__  # type: ignore[attr-defined]
    names = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")
    row: Row = {"params": {name: getattr(params, name) for name in names if hasattr(params, name)}, "fields": {}}
    if "__slots__" in vars(kind):
        row["params"]["slots"] = True
    own = vars(kind).get("__annotations__", {})
    for name, field in kind.__dataclass_fields__.items():  # type: ignore[attr-defined]
        if name not in own or field._field_type is dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]
            continue
        made = {key: getattr(field, key) for key in ("init", "repr", "hash", "compare")}
        if isinstance(field.kw_only, bool):
            made["kw_only"] = field.kw_only
        way = f"{path}.{name}"
        if field.default is not dataclasses.MISSING:
            made["default"] = encoder.value(field.default, way)
        if field.default_factory is not dataclasses.MISSING:
            made["default_factory"] = encoder.value(field.default_factory, way)
        made["init_only"] = field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
        row["fields"][name] = made
    return row


# -- and back


def make(row: Mapping[str, Any], value: Any) -> type:
    """The class of a row. `value` decodes what stands in it."""
    meta, bases = value(row["meta"]), tuple(value(base) for base in row["bases"])
    members = {name: value(x) for name, x in row["members"].items()}
    about = {"__module__": row["module"], "__qualname__": row["qualname"]}
    if "fields" in row and "dataclass" not in row:
        defaults = tuple(value(x) for x in row["defaults"])
        kind: type = collections.namedtuple(row["name"], row["fields"], defaults=defaults, module=row["module"])  # type: ignore[misc]
        for name, x in members.items():
            setattr(kind, name, x)
        kind.__qualname__ = row["qualname"]
        return kind
    space = meta.__prepare__(row["name"], bases) if hasattr(meta, "__prepare__") else {}
    for name, x in {**about, **members}.items():
        space[name] = x
    for name, x in row.get("items", ()):
        space[name] = value(x)
    if "dataclass" in row:
        return _make_dataclass(row, meta, bases, space, value)
    return meta(row["name"], bases or (object,), space)  # type: ignore[no-any-return]


def _make_dataclass(row: Mapping[str, Any], meta: Any, bases: tuple[type, ...], space: Any, value: Any) -> type:
    annotations = {}
    for name, one in row["dataclass"]["fields"].items():
        annotations[name] = dataclasses.InitVar[object] if one["init_only"] else object
        known = {key: x for key, x in one.items() if key not in ("init_only", "default", "default_factory")}
        more = {key: value(one[key]) for key in ("default", "default_factory") if key in one}
        space[name] = dataclasses.field(**known, **more)
    space["__annotations__"] = annotations
    kind = meta(row["name"], bases or (object,), space)
    return dataclasses.dataclass(**row["dataclass"]["params"])(kind)  # type: ignore[no-any-return]
