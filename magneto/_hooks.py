"""Hooks on gradients, as captures have them: handles, and the hooks of modules."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import _MultiHandle, register_multi_grad_hook
from torch.utils.hooks import BackwardHook, RemovableHandle

from magneto import graph_break


class HookHandle(RemovableHandle):
    """What Tensor.register_hook gives in a capture. The segment's end makes it a RemovableHandle."""

    def remove(self) -> None:
        raise AssertionError  # captures know what it does

    def real(name: str) -> Any:  # type: ignore[misc]
        """An attribute that only the real handle has: the segment ends where it is read."""

        def read(self: Any) -> Any:
            graph_break()
            return getattr(self, name)

        return property(read)

    id, hooks_dict_ref, extra_dict_ref = real("id"), real("hooks_dict_ref"), real("extra_dict_ref")
    del real


class SeveralHandle(HookHandle):
    """Likewise of register_multi_grad_hook."""

    def read(self) -> Any:
        graph_break()
        return self.handles

    handles = property(read)
    del read


def fill(handle: RemovableHandle, registered: RemovableHandle | None) -> None:
    """`handle` is made the one that was `registered`; None: that of a hook which has been removed."""
    if registered is None:
        registered = _MultiHandle(()) if isinstance(handle, _MultiHandle) else RemovableHandle(OrderedDict())
    vars(handle).update(vars(registered))


def register_any(tensors: Sequence[torch.Tensor], hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    return register_multi_grad_hook(tensors, hook, mode="any")


def as_written(method: Callable[..., Any], *args: Any) -> Any:
    """A side exit: CPython calls the method itself."""
    return method(*args)


def register_of_module(tensor: torch.Tensor, hook: Callable[[Any], Any], original: torch.Tensor) -> None:
    """The hook is called behind all others of the tensor, a copy of `original`. (What captures know of it.)"""
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def place_of_tensor(values: Any) -> int | None:
    """Where the one tensor is that a module with hooks is given or gives. None: there is no gradient there. -1: there
    are several, or a copy would have other strides."""
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    if not torch.is_grad_enabled() or not any(values[i].requires_grad for i in places):
        return None
    if len(places) > 1 or values[places[0]].stride() != torch.empty_like(values[places[0]]).stride():
        return -1
    return places[0]


def with_copy(values: Any, place: int, hook: Callable[[Any], Any]) -> Any:
    copy = values[place].clone()
    register_of_module(copy, hook, values[place])
    items = [copy if i == place else value for i, value in enumerate(values)]
    return tuple(items) if type(values) is tuple else type(values)(*items)


def given(gradient: Any) -> Any:
    if gradient is None:
        raise RuntimeError("a backward hook of a module gives None in place of a gradient: @magneto.disable helps")
    return gradient


def setup_input_hook(self: Any, args: Any) -> Any:
    """BackwardHook.setup_input_hook, by a hook of a tensor in place of one of a node."""
    place = place_of_tensor(args)
    if place == -1:
        return as_written(BackwardHook.setup_input_hook, self, args)
    self.n_inputs = len(args)
    self.input_tensors_index = None if place is None else [place]
    if place is None:
        return args

    def hook(gradient: Any) -> Any:
        if self.grad_outputs is None:
            return None
        gradients = self._pack_with_none([place], [gradient], self.n_inputs)
        for user_hook in self.user_hooks:
            out = user_hook(self.module, gradients, self.grad_outputs)
            if out is None:
                continue
            if len(out) != len(gradients):
                raise RuntimeError(
                    "Backward hook returned an invalid number of grad_input, "
                    f"got {len(out)}, but expected {len(gradients)}"
                )
            gradients = out
        self.grad_outputs = None
        return given(gradients[place])

    return with_copy(args, place, hook)


def setup_output_hook(self: Any, args: Any) -> Any:
    """Likewise."""
    values = args if isinstance(args, tuple) else (args,)
    place = place_of_tensor(values)
    if place == -1:
        return as_written(BackwardHook.setup_output_hook, self, args)
    self.n_outputs = len(values)
    self.output_tensors_index = None if place is None else [place]
    if place is None:
        return args

    def hook(gradient: Any) -> Any:
        self.grad_outputs = self._pack_with_none([place], [gradient], self.n_outputs)
        for user_hook in self.user_pre_hooks or ():
            out = user_hook(self.module, self.grad_outputs)
            if out is None:
                continue
            if len(out) != self.n_outputs:
                raise RuntimeError(
                    "Backward pre hook returned an invalid number of grad_output, "
                    f"got {len(out)}, but expected {self.n_outputs}"
                )
            self.grad_outputs = out
        gradients = self.grad_outputs
        if self.input_tensors_index is None:
            warnings.warn(
                "Full backward hook is firing when gradients are computed "
                "with respect to module outputs since no inputs require gradients. See "
                "https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
                "#torch.nn.Module.register_full_backward_hook "
                "for more details.",
                stacklevel=5,
            )
            nothing = self._pack_with_none([], [], self.n_inputs)
            for user_hook in self.user_hooks:
                out = user_hook(self.module, nothing, gradients)
                if out is not None and not (isinstance(out, tuple) and all(one is None for one in out)):
                    raise RuntimeError(
                        "Backward hook for Modules where no input requires "
                        "gradient should always return None or None for all gradients."
                    )
            self.grad_outputs = None
        return given(gradients[place])

    result = with_copy(values, place, hook)
    return result if isinstance(args, tuple) else result[0]
