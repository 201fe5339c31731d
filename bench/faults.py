"""How long the tools take to find one fault in a large model: BERT of twelve layers, of the transformers package, with
random weights.

python -P bench/faults.py [--layers 12]

tools/planted_faults.py has the small ones: whether faults of all kinds are found.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import magneto
from magneto import _testing


class Pooled(torch.nn.Module):
    """BERT, and the one tanh that it ends with: the operator that the faults are planted in."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=99,
            hidden_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=256,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        )
        self.bert = BertModel(config)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=tokens, attention_mask=mask).pooler_output  # type: ignore[no-any-return]


def aborts(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend that does not survive a tanh."""
    if any(node.target in (torch.tanh, "tanh") for node in gm.graph.nodes):
        os.abort()
    return gm.forward  # type: ignore[no-any-return]


class Clock:
    """Seconds since it was made: by the wall, and of the CPU in this process and its children."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), self._used()

    def _used(self) -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.1f} s ({self._used() - self._cpu:.1f} s of CPU)"


def operators_in(script: Path) -> int:
    """The calls of a script's graph."""
    if not script.exists():
        return 0
    text = script.read_text()
    body = text[text.index("def forward") : text.index("mod = Repro()")]
    return sum(" = " in line and "= self." not in line for line in body.splitlines()[1:])


@contextlib.contextmanager
def planted(place: str, subject: str) -> Iterator[None]:
    """A fault, and nothing that was compiled before."""
    magneto.reset()
    if place:
        _testing.plant_fault(place, subject)
    try:
        yield
    finally:
        _testing.clear_faults()


def minified(
    name: str, model: torch.nn.Module, inputs: Any, trains: bool, level: int, place: str, subject: str
) -> bool:
    """Prints how long it takes, and to what; whether one operator is left."""
    after = "aot" if place else "dynamo"
    with tempfile.TemporaryDirectory() as folder, planted(place, subject):
        clock = Clock()
        with (
            magneto.config.patch(debug_dir=folder, disk_cache=False, repro_after=after, repro_level=level),
            contextlib.suppress(magneto.exc.BackendCompilerFailed, magneto.exc.AccuracyError, RuntimeError),
            torch.set_grad_enabled(trains),
        ):
            out = magneto.compile(model, backend="magneto" if place else aborts)(*inputs)
            if trains:
                out.sum().backward()
        left = operators_in(Path(folder) / "repro.py")
        print(f"minify, {name}: {clock}, {left} operators", flush=True)
    return left == 1


def bisected(model: torch.nn.Module, inputs: Any) -> bool:
    """A wrong kernel in a training step."""
    with tempfile.TemporaryDirectory() as folder, planted("kernel.wrong", "tanh"):
        clock = Clock()
        with magneto.config.patch(debug_dir=folder, disk_cache=False):
            found = magneto.bisect(model, inputs)
        print(f"bisect of a training step: {clock}\n{found}")
        return "aten.tanh" in found.kernel and bool(found.script)


def operators_of(model: torch.nn.Module, inputs: Any) -> str:
    """How many there are: captured calls, and ATen operators of the forward."""
    calls: list[int] = []

    def count(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        calls.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward  # type: ignore[no-any-return]

    magneto.compile(model, backend=count)(*inputs)
    with torch.no_grad():
        texts = magneto.debug_dump(model, *inputs)
    operators = sum(text["normal_form"].count("aten::") or text["normal_form"].count("aten.") for text in texts)
    return f"{sum(calls)} calls, {operators} operators"


def main() -> int:
    """1: something was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    logging.getLogger("torch._dynamo.magneto").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Pooled(options.layers)
    inputs = (torch.randint(3, 99, (2, 16)), torch.ones(2, 16, dtype=torch.int64))
    print(f"{operators_of(model, inputs)}; load {os.getloadavg()[0]:.1f}", flush=True)
    rows = (
        ("dynamo, a crash", False, 2, "", ""),
        ("aot, a crash", False, 2, "lower.crash", "aten.tanh.default"),
        ("aot, a wrong kernel", False, 4, "kernel.wrong", "tanh"),
        ("aot, a crash in the backward", True, 2, "lower.crash", "aten.tanh_backward.default"),
    )
    good = [minified(name, model, inputs, *row) for name, *row in rows]
    return 0 if all([*good, bisected(model, inputs)]) else 1


if __name__ == "__main__":
    sys.exit(main())
