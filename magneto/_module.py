"""Compiled modules: modules that run compiled and are otherwise the module they were made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from magneto import _C, _arguments, config

# Names that live in the wrapper itself; all other attributes are the original module's.
_OWN = frozenset({"_orig_mod", "_compiled", "_core_options", "__dict__", "training"})

# The dicts in which a module keeps its hooks. The wrapper shares them with the original, so that it makes no difference
# on which of the two a hook is registered: the original's own call, which is what is compiled, runs them.
_SHARED_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class OptimizedModule(torch.nn.Module, _C.CallMixin):
    """What `magneto.compile(module)` gives.

    Calls go from C straight to the compiled code (`__call__` below is the call slot): on a hit no Python runs. Reading,
    setting and deleting attributes, `len`, `in`, `[]` and iteration reach the original module, `_orig_mod`. Names in
    `state_dict` and `named_parameters` carry the prefix `_orig_mod.`, as torch.compile's do; `load_state_dict` takes
    names with and without it. Copying and pickling take the original along and compile the copy anew.
    """

    _orig_mod: torch.nn.Module
    _core_options: dict[str, Any]

    # torch.nn.Module is the first base: a class made of this one and another of Python's has the same layout, so that
    # `module.__class__ = ...` works, as FSDP's fully_shard does it.
    __call__ = _C.CallMixin.__call__

    def __init__(self, module: torch.nn.Module, core_options: dict[str, Any]) -> None:
        # `super().__init__` sets attributes and __setattr__ below asks for the original: it has to be there first, and
        # not yet as a submodule, whose table does not exist.
        self.__dict__["_orig_mod"] = module
        self.__dict__["_core_options"] = core_options
        training = module.training
        super().__init__()
        del self.__dict__["_orig_mod"]
        self._modules["_orig_mod"] = module
        module.training = training
        for name in _SHARED_HOOKS:
            self.__dict__[name] = getattr(module, name)
        self._compiled = _C.compile(module.__call__, core_options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs compiled, as calling the module does."""
        return self._compiled(*args, **kwargs)

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self._orig_mod, name)

    def _is_own(self, name: str) -> bool:
        # A patched `forward` is the original's: that is what calls run.
        return name in _OWN or (name != "forward" and hasattr(type(self), name))

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod)})

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """What torch.jit.script compiles."""
        return self._orig_mod

    @property
    def dynamo_ctx(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Compiles another function as this module was: Lightning asks for it under torch.compile's name."""
        return lambda function: _C.compile(function, self._core_options)

    # Looked up on the type, so __getattr__ does not serve them.
    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        return iter(self._orig_mod)  # type: ignore[call-overload]

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index, operator]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._orig_mod[key] = value  # type: ignore[index, operator]

    def __contains__(self, item: Any) -> bool:
        return item in self._orig_mod  # type: ignore[operator]

    def __bool__(self) -> bool:
        # A module without a __len__ is true; with one, bool asks it.
        return bool(self._orig_mod)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # A checkpoint of the plain module: its names lack the prefix of this one's.
        inner = prefix + "_orig_mod."
        for name in [name for name in state_dict if name.startswith(prefix) and not name.startswith(inner)]:
            state_dict[inner + name.removeprefix(prefix)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the original anew with these arguments of `magneto.compile`, in place."""
        core_options = _arguments.core_options(*args, **kwargs)
        if core_options["disable"] or config.disable:
            self._compiled = self._orig_mod.__call__
        else:
            self._core_options = core_options
            self._compiled = _C.compile(self._orig_mod.__call__, core_options)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return OptimizedModule, (self._orig_mod, self._core_options)

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        import copy

        result = OptimizedModule(copy.deepcopy(self._orig_mod, memo), self._core_options)
        memo[id(self)] = result
        return result
