"""How much memory of GPUs a run takes, and a snapshot of their allocators, for PyTorch's viewer of memory."""

from __future__ import annotations

from typing import Any

import torch

from magneto._debug import scripts


def watch() -> None:
    """From a GPU's first use in this process on, its allocator writes down what it gives and takes back."""
    torch.cuda._lazy_call(torch.cuda.memory._record_memory_history)  # type: ignore[no-untyped-call]


def peaks() -> dict[str, int]:
    """The most bytes that each GPU had allocated. Empty: none was used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    taken = {f"cuda:{i}": torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())}
    return {name: most for name, most in taken.items() if most}


def snapshot() -> str:
    """Where the allocators' history since `watch` is, "" if no GPU was used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    path = scripts.folder() / "memory_snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
    return str(path)


def texts(compiled: dict[str, Any], eager: dict[str, Any]) -> list[str]:
    """Sentences on the peaks of two runs; `compiled` may have a "snapshot"."""
    found = [
        f"{name}: peak {most / 2**20:.2f} MB, eager's {eager.get(name, 0) / 2**20:.2f} MB"
        for name, most in compiled.items()
        if name != "snapshot"
    ]
    if compiled.get("snapshot"):
        found.append(f"snapshot of the allocator: {compiled['snapshot']} (https://pytorch.org/memory_viz shows it)")
    return found
