"""Time of a backward over several compiled functions and eager operators between, with compiled autograd and without.

    python bench/compiled_autograd.py

Seconds of the thread, one thread: the least and the median of 150, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import magneto


def network(layers: int, width: int, rows: int) -> Callable[[], Tensor]:
    """Its loss: compiled layers, and what eager does between."""
    torch.manual_seed(0)

    def piece(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        compiled: Callable[[Tensor], Tensor] = torch.compile(lambda x: nn.functional.gelu(linear(x)))
        return compiled

    pieces = [piece(nn.Linear(width, width)) for _ in range(layers)]
    x = torch.randn(rows, width)

    def loss() -> Tensor:
        h = x
        for compiled in pieces:
            h = torch.tanh(compiled(h)) * 1.5 + h
        return (h**2).mean()

    return loss


def seconds(loss: Callable[[], Tensor], captured: bool) -> float:
    torch._dynamo.config.compiled_autograd = captured
    value = loss()
    before = time.thread_time()
    value.backward()
    return time.thread_time() - before


def main() -> None:
    magneto.install()
    torch.set_num_threads(1)
    for layers, width, rows in ((4, 16, 8), (4, 256, 128), (24, 256, 64)):
        loss = network(layers, width, rows)
        for _ in range(2):
            seconds(loss, captured=False)
        first = seconds(loss, captured=True)
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(150):
            for captured, measured in times.items():
                measured.append(seconds(loss, captured))
        figures = "; ".join(
            f"{name} {min(times[on]) * 1e6:.0f} us, median {statistics.median(times[on]) * 1e6:.0f} us"
            for on, name in ((False, "without"), (True, "with"))
        )
        print(f"{layers} layers of {width}, {rows} rows: {figures}; the first one {first * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
