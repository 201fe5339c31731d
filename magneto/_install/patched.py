"""What others hold of PyTorch's compiler where it is loaded, before `install` or since (peer.py): it becomes Magneto's.

Functions stay the objects that they are, with another body, those that it has compiled or disabled included. What is no
function is exchanged in the modules that have imported it. What the program has set in its configuration is taken over.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magneto import _backends
from magneto._install import config_modules, dynamo, modules, peer, table
from magneto._install.changes import Changes

_WRAPS = "torch._dynamo.eval_frame"


def change(changes: Changes, loaded: Mapping[str, types.ModuleType]) -> None:
    """Changes the names of the modules `loaded`, and what was made by them or imported from them."""
    exchanged: dict[int, Any] = {}  # id of an object of PyTorch's compiler -> ours
    for name, module in loaded.items():
        shim = modules.load(name)
        if isinstance(shim, config_modules.ConfigModule):
            exchanged[id(module)] = shim
            shim.take_over(module)
        for row in table.MODULES[name]:
            before = vars(module).get(row.name)
            if before is None or row.target == table.PEERS:
                continue
            original = peer.keep_original(name, row.name, before)
            ours = getattr(shim, row.name)
            if isinstance(before, types.FunctionType):
                changes.body(before, peer.unless_loading(original, ours))
            else:
                exchanged[id(before)] = ours
                changes.attribute(module, row.name, ours)
        for child in table.children(name):
            if child in vars(module):
                changes.attribute(module, child, modules.load(f"{name}.{child}"))
    if _WRAPS in loaded:
        for wrapper in list(_wrappers(loaded[_WRAPS])):
            changes.body(wrapper, _ours(wrapper))
    for holder, name, value in _holders(exchanged):
        changes.attribute(holder, name, exchanged[id(value)])


def give_way(stood_in: Mapping[str, types.ModuleType]) -> None:
    """Classes of modules that stood in for PyTorch's become PyTorch's where they were imported: it raises its own.

    Functions of ours ask PyTorch's once they are there (shapes.py).
    """
    exchanged = {
        id(value): getattr(sys.modules[module], name)
        for module, shim in stood_in.items()
        for name, value in vars(shim).items()
        if isinstance(value, type) and table.has_row(module, name)
    }
    for holder, name, value in _holders(exchanged):
        setattr(holder, name, exchanged[id(value)])


def _holders(exchanged: Mapping[int, Any]) -> list[tuple[types.ModuleType, str, Any]]:
    """Where modules hold the objects with these ids: module, name, object."""
    return [
        (holder, name, value)
        for holder in list(sys.modules.values())
        if exchanged and not peer.is_served(holder)
        for name, value in list(getattr(holder, "__dict__", {}).items())
        if id(value) in exchanged
    ]


def _wrappers(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """The functions that PyTorch's compiler has put around those that it compiles or leaves alone."""
    file = getattr(module, "__file__", None)
    for function in gc.get_objects():
        if type(function) is not types.FunctionType or function.__code__.co_filename != file:
            continue
        if "_torchdynamo_orig_callable" in vars(function):
            yield function


def _is_kept_from_compiler(function: Any) -> bool:
    """PyTorch's compiler keeps these of the optimizers to itself once it has been used; we capture them (calls.cpp)."""
    name = getattr(function, "__name__", "")
    inside = (getattr(function, "__module__", None) or "").startswith("torch.optim.")
    return inside and (name == "_init_group" or name.startswith("_fused_"))


def _ours(wrapper: types.FunctionType) -> Callable[..., Any]:
    """What Magneto makes of the function that `wrapper` is around."""
    function = vars(wrapper)["_torchdynamo_orig_callable"]
    if _is_kept_from_compiler(function):
        return function  # type: ignore[no-any-return]
    if vars(wrapper).get("_torchdynamo_disable"):
        recursive = vars(wrapper).get("_torchdynamo_disable_recursive", True)
        return dynamo.disable(function, recursive, reason=vars(wrapper).get("_torchdynamo_disable_msg"))  # type: ignore[no-any-return]
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    context = cells["self"].cell_contents if "self" in cells else None
    backend: Any = getattr(context, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    name, given = getattr(backend, "compiler_name", None), getattr(backend, "compiler_fn", backend)
    if name not in _backends.known() and getattr(given, "__module__", "").startswith(table.PACKAGES):
        return table.refusing(f"torch.compile(backend={name!r})", "that backend is a part of PyTorch's compiler")  # type: ignore[no-any-return]
    return dynamo.torch_compile(  # type: ignore[no-any-return]
        function,
        fullgraph=bool(getattr(context, "fullgraph", False)),
        dynamic=getattr(context, "_dynamic", None),
        backend=name if name in _backends.known() else given,
        options=getattr(backend, "config", None) or None,
    )
