"""What others hold of PyTorch's compiler where it was loaded before `install`: it becomes Magneto's, too.

Functions stay the objects that they are, with another body, those that it has compiled or disabled included. What is no
function is exchanged in the modules that have imported it. What the program has set in its configuration is taken over.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magneto._install import dynamo, modules, settings, table
from magneto._install.changes import Changes


def change(changes: Changes, loaded: Mapping[str, types.ModuleType]) -> None:
    """Changes the names of the modules `loaded`, and what was made by them or imported from them."""
    exchanged: dict[int, Any] = {}  # id of an object of PyTorch's compiler -> ours
    for name, module in loaded.items():
        if name not in table.MODULES:
            continue
        shim = modules.load(name)
        if isinstance(shim, settings.ConfigModule):
            exchanged[id(module)] = shim
            shim.take_over(module)
        for row in table.MODULES[name]:
            before = vars(module).get(row.name)
            if before is None:
                continue
            ours = getattr(shim, row.name)
            if isinstance(before, types.FunctionType):
                changes.body(before, ours)
            else:
                exchanged[id(before)] = ours
            changes.attribute(module, row.name, ours)
        for child in table.children(name):
            if child in vars(module):
                changes.attribute(module, child, modules.load(f"{name}.{child}"))
    for wrapper in list(_wrappers(loaded)):
        changes.body(wrapper, _ours(wrapper))
    for holder in list(sys.modules.values()):
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if id(value) in exchanged:
                changes.attribute(holder, name, exchanged[id(value)])


def _wrappers(loaded: Mapping[str, types.ModuleType]) -> Iterator[types.FunctionType]:
    """The functions that PyTorch's compiler has put around those that it compiles or leaves alone."""
    files = {getattr(module, "__file__", None) for module in loaded.values()}
    for function in gc.get_objects():
        if type(function) is not types.FunctionType or function.__code__.co_filename not in files:
            continue
        if "_torchdynamo_orig_callable" in vars(function):
            yield function


def _ours(wrapper: types.FunctionType) -> Callable[..., Any]:
    """What Magneto makes of the function that `wrapper` is around."""
    function = vars(wrapper)["_torchdynamo_orig_callable"]
    if vars(wrapper).get("_torchdynamo_disable"):
        return dynamo.disable(function, vars(wrapper).get("_torchdynamo_disable_recursive", True))  # type: ignore[no-any-return]
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    context = cells["self"].cell_contents if "self" in cells else None
    backend: Any = getattr(context, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    name, given = getattr(backend, "compiler_name", None), getattr(backend, "compiler_fn", backend)
    if name not in dynamo.list_backends() and getattr(given, "__module__", "").startswith(table.PACKAGES):
        return table.refusing(f"torch.compile(backend={name!r})", "that backend is a part of PyTorch's compiler")  # type: ignore[no-any-return]
    return dynamo.torch_compile(  # type: ignore[no-any-return]
        function,
        fullgraph=bool(getattr(context, "fullgraph", False)),
        dynamic=getattr(context, "_dynamic", None),
        backend=name if name in dynamo.list_backends() else given,
        options=getattr(backend, "config", None) or None,
    )
