"""Fake kernels of custom operators that ask for a data-dependent size (torch.library.get_ctx)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._library import fake_impl

# Stands for such a size while the kernel runs on tensors without data: no size of the program's.
SIZE = 2**31 - 19


class Context:
    """What get_ctx() gives."""

    def __init__(self) -> None:
        self.asked = 0

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        """One size is told apart, no more."""
        self.asked += 1
        if self.asked > 1:
            raise NotImplementedError("several data-dependent sizes")
        return SIZE

    create_unbacked_symint = new_dynamic_size


def begin() -> Callable[[], None]:
    """From here on kernels that this thread calls may ask; until the function is called that is given."""
    original, thread, context = fake_impl.set_ctx_getter, threading.get_ident(), Context()

    @contextlib.contextmanager
    def set_getter(getter: Callable[[], Any]) -> Iterator[None]:
        own = threading.get_ident() == thread
        with original((lambda: context) if own else getter):
            yield

    def end() -> None:
        fake_impl.set_ctx_getter = original

    fake_impl.set_ctx_getter = set_getter  # type: ignore[assignment]
    return end
