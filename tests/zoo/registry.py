"""The list that the files of this package fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

ZOO: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    breaks: int  # side exits of one cold call


def zoo(inputs: Callable[[], tuple[Any, ...]], breaks: int = 0) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Adds a module class, made without arguments and called with what `inputs` gives."""

    def add(cls: type[nn.Module]) -> type[nn.Module]:
        assert cls.__name__ not in ZOO
        ZOO[cls.__name__] = Entry(cls, inputs, breaks)
        return cls

    return add


def images(channels: int = 3, size: int = 8, batch: int = 2) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, channels, size, size),)


def vectors(width: int = 6, batch: int = 4) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, width),)


def sequences(width: int = 6, length: int = 5, batch: int = 3) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, length, width),)
