"""What of a process guards read: a record has it, and a replay sets it as long as it runs."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from magneto import config

# Settings that say where things are written, or ask for other reports.
_OF_THE_PLACE = frozenset(
    [
        "replay_record_enabled",
        "replay_record_mb",
        "debug_dir",
        "debug_dump",
        "disk_cache_dir",
        "disk_cache_key_file",
        "repro_after",
        "repro_level",
    ]
)
_AUTOCAST = ("cpu", "cuda")


def capture() -> dict[str, Any]:
    """As it is now."""
    return {
        "grad_mode": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": {
            kind: {
                "enabled": torch.is_autocast_enabled(kind),
                "dtype": str(torch.get_autocast_dtype(kind)).removeprefix("torch."),
            }
            for kind in _AUTOCAST
        },
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "seed": torch.initial_seed(),
        "random_state": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(),
    }


def settings() -> dict[str, Any]:
    """Settings that are not at their defaults and say how to compile."""
    return {
        name: value
        for name, value in config.current().items()
        if value != config.SETTINGS[name].default and name not in _OF_THE_PLACE
    }


@contextlib.contextmanager
def applied(state: Mapping[str, Any], changed: Mapping[str, Any]) -> Iterator[None]:
    """The process as it was recorded, and afterwards as before."""
    known = {name: value for name, value in changed.items() if name in config.SETTINGS}
    before = capture()
    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(**known))
        stack.callback(_set, before)
        _set(state)
        for kind, how in state["autocast"].items():
            if how["enabled"]:
                dtype = getattr(torch, how["dtype"])
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=state["autocast_cache"]))
        device = torch.device(state["default_device"])
        if device != torch.get_default_device():
            stack.enter_context(device)
        if state["inference_mode"]:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(state["grad_mode"]))
        yield


def _set(state: Mapping[str, Any]) -> None:
    torch.set_default_dtype(getattr(torch, state["default_dtype"]))
    # Not use_deterministic_algorithms: that loads PyTorch's compiler.
    torch._C._set_deterministic_algorithms(state["deterministic"], warn_only=state["deterministic_warn_only"])
    torch.set_float32_matmul_precision(state["matmul_precision"])
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    torch.set_rng_state(torch.tensor(list(base64.b64decode(state["random_state"])), dtype=torch.uint8, device="cpu"))
