"""What `verify="sample"` costs a call, at its default rate of 1%, with its budget and without.

python -P bench/verify.py [--seconds 1]

Off, with the budget and without take turns, so that what else the machine does meets all; the median over the rounds of
what each round took more than its neighbour is shown, in percent.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import magneto

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def small(x: torch.Tensor) -> torch.Tensor:
    """Ten operators."""
    for _ in range(5):
        x = (x + 1) * 0.5
    return x


def chain(x: torch.Tensor) -> torch.Tensor:
    """Functions of a million numbers."""
    return ((x.tanh() + 1).log() * x.sigmoid()).exp() - x.cos()


def programs() -> dict[str, Program]:
    """What is timed."""
    mlp = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).eval()
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).eval()
    return {
        "sin of four numbers": (torch.sin, (torch.randn(4),)),
        "ten small operators": (small, (torch.randn(16),)),
        "an MLP, 64 rows": (mlp, (torch.randn(64, 512),)),
        "an encoder layer, 4 x 64": (layer, (torch.randn(4, 64, 256),)),
        "a chain over a million numbers": (chain, (torch.randn(1 << 20),)),
    }


WAYS: dict[str, dict[str, Any]] = {
    "off": {},
    "budget": {"verify": "sample"},
    "no budget": {"verify": "sample", "verify_budget": float("inf")},
}


def timed(compiled: Callable[..., Any], args: tuple[torch.Tensor, ...], calls: int, settings: dict[str, Any]) -> float:
    """Seconds of CPU of so many calls."""
    with magneto.config.patch(settings):
        start = time.process_time()
        for _ in range(calls):
            compiled(*args)
        return time.process_time() - start


def main() -> None:
    """Prints a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each program in each way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'program':32}{'a call':>10}{'budget':>10}{'no budget':>11}")
    with torch.no_grad():
        for name, (program, args) in programs().items():
            magneto.reset()
            compiled = magneto.compile(program)
            for settings in WAYS.values():
                timed(compiled, args, 300, settings)
            each = timed(compiled, args, 100, {}) / 100
            rounds = 25
            calls = max(200, round(options.seconds / rounds / each))
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, settings in WAYS.items():
                    taken[way].append(timed(compiled, args, calls, settings) / calls)
            off = statistics.median(taken["off"])
            more = [
                100 * (statistics.median(a / b for a, b in zip(taken[way], taken["off"], strict=True)) - 1)
                for way in ("budget", "no budget")
            ]
            print(f"{name:32}{1e6 * off:7.1f} us{more[0]:9.1f}%{more[1]:10.1f}%", flush=True)


if __name__ == "__main__":
    main()
