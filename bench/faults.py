"""How well faults are found: plants them, one after the other, and asks the minifier and magneto.bisect what is wrong.

python -P bench/faults.py                 # the table: found, named, operators in the script, seconds
python -P bench/faults.py --transformer   # one operator of a 12-layer transformer's, and a kernel in its training step
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import magneto
from magneto import _testing


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What the faults are planted in: a dozen operators, products, norms and reductions."""
    y = F.layer_norm(x @ w, (16,))
    z = torch.relu(y) + x
    z = torch.tanh(z @ w) * y
    z = torch.sigmoid(z) - torch.exp(-z.abs())
    z = F.gelu(z) / (z.square().sum(-1, keepdim=True) + 1)
    return torch.softmax(z.sin() @ w, -1)


def writes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """For faults of writes."""
    x.mul_(2)
    w[0].add_(x[0])
    return torch.tanh(x) @ w


@dataclass
class Fault:
    """A row: what goes wrong where, and what has to be named."""

    name: str
    operator: str  # what the script must call
    backend: Any = None  # a broken one; else `place` and `subject` of the core
    place: str = ""
    subject: str = ""
    accuracy: bool = False
    gradients: bool = False
    stage: str = ""  # for magneto.bisect
    program: Callable[..., Any] = program


_BACKEND = """
def {name}(gm, example_inputs):
    found = [node for node in gm.graph.nodes if node.target is {target}]
    if found:
        {body}
    return gm.forward
"""
_BODIES = {
    "refuses": "raise ValueError(f'no {found[0].name}, please')",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "aborts": "os.abort()",
    "hangs": "time.sleep(1000)",
    "is wrong": "make_wrong(gm, found[0])",
}
_WRONG = """
import os, signal, time
import torch

def make_wrong(gm, node):
    with gm.graph.inserting_after(node):
        other = gm.graph.call_function(torch.mul, (node, 1.5))
    node.replace_all_uses_with(other)
    other.args = (node, 1.5)
    gm.recompile()
"""


def broken(how: str, target: str) -> Callable[..., Any]:
    """A backend that does not like an operator: of a module, so that scripts can import it."""
    folder = Path(_MODULES.name)
    name = f"{how.replace(' ', '_')}_{target.rpartition('.')[2]}"
    text = _WRONG + _BACKEND.format(name=name, target=target, body=_BODIES[how])
    (folder / f"faulty_{name}.py").write_text(text)
    importlib.invalidate_caches()
    return getattr(importlib.import_module(f"faulty_{name}"), name)  # type: ignore[no-any-return]


_MODULES = tempfile.TemporaryDirectory()
sys.path.insert(0, _MODULES.name)


def rows() -> list[Fault]:
    """All faults."""
    found = []
    targets = {name: f"torch.{name}" for name in ("tanh", "relu", "sigmoid", "softmax")}
    for how in ("refuses", "crashes", "aborts", "is wrong"):
        for name, target in targets.items():
            wrong = how == "is wrong"
            row = Fault(f"backend {how}: {name}", f"torch.{name}", broken(how, target), accuracy=wrong)
            found.append(row)
    for name in ("tanh", "softmax"):
        found.append(Fault(f"backend hangs: {name}", f"torch.{name}", broken("hangs", targets[name])))
    for how in ("raise", "crash", "hang"):
        for name in ("tanh", "sigmoid", "sin", "_softmax"):
            row = Fault(
                f"lowering, {how}: {name}", f"aten.{name}.", place=f"lower.{how}", subject=f"aten.{name}.default"
            )
            row.stage = "lowering"
            if how != "hang" or name == "tanh":  # each question of a hang takes its whole time
                found.append(row)
    for name in ("tanh_backward", "native_layer_norm_backward", "gelu_backward"):
        row = Fault(f"lowering, backward: {name}", f"aten.{name}.", place="lower.raise", subject=f"aten.{name}.default")
        row.gradients, row.stage = True, "lowering"
        found.append(row)
    for kind in ("wrong", "lane"):
        for name in ("tanh", "sigmoid", "exp", "sin"):
            row = Fault(f"kernel, {kind}: {name}", f"aten.{name}.", place=f"kernel.{kind}", subject=name, accuracy=True)
            row.stage = "code generation"
            found.append(row)
    found.append(Fault("kernel, one size: tanh", "aten.tanh.", place="kernel.size", subject="tanh:16", accuracy=True))
    found[-1].stage = "code generation"
    swaps = {"tanh": "sigmoid", "sin": "cos", "sigmoid": "tanh", "relu": "sigmoid"}
    for pass_name in ("functionalise", "merge_common", "eliminate_dead", "separate_bias"):
        for name, other in swaps.items():
            row = Fault(f"pass {pass_name}: {name}", f"aten.{name}.", place=f"pass.{pass_name}", accuracy=True)
            row.subject, row.stage = f"aten::{name}>aten::{other}", "passes"
            found.append(row)
    found.append(Fault("pass loses a write", "", place="pass.functionalise", subject="write", program=writes))
    found[-1].stage = "passes"
    for name, other in {
        "tanh_backward": "sigmoid_backward",
        "sigmoid_backward": "tanh_backward",
        "cos": "sin",
        "neg": "abs",
    }.items():
        row = Fault(f"wrong backward: {name}", "", place="backward", subject=f"aten::{name}>aten::{other}")
        row.gradients, row.stage = True, "autograd"
        found.append(row)
    return found


def inputs(gradients: bool) -> list[torch.Tensor]:
    """For the programs above."""
    torch.manual_seed(0)
    return [torch.randn(8, 16, requires_grad=gradients), torch.randn(16, 16, requires_grad=gradients)]


def script_lines(folder: Path) -> list[str]:
    """The calls in the script's forward."""
    file = folder / "repro.py"
    if not file.exists():
        return []
    text = file.read_text()
    body = text[text.index("def forward") : text.index("mod = Repro()")]
    return [line.strip() for line in body.splitlines()[1:] if " = " in line]


def minified(fault: Fault, folder: Path) -> tuple[bool, int]:
    """Whether the script has the operator, and how many operators it has."""
    after = "dynamo" if fault.backend is not None else "aot"
    with magneto.config.patch(repro_after=after, repro_level=4 if fault.accuracy else 2, repro_seconds=2):
        with contextlib.suppress(Exception):
            args = inputs(fault.gradients)
            magneto.compile(fault.program, backend=fault.backend or "magneto")(*args)
    calls = script_lines(folder)
    return any(fault.operator in call for call in calls), len(calls)


def table() -> int:
    """Prints a line for each fault; 1 if more than two are not found."""
    all_rows, right = rows(), 0
    for fault in all_rows:
        start = time.perf_counter()
        said = ""
        with tempfile.TemporaryDirectory() as folder, magneto.config.patch(debug_dir=folder, disk_cache=False):
            magneto.reset()
            if fault.place:
                _testing.plant_fault(fault.place, fault.subject)
            found = True
            if fault.operator:
                found, operators = minified(fault, Path(folder))
                found &= operators <= 5
                said = f"{operators} operators"
            if fault.stage and fault.place != "lower.hang":
                magneto.reset()
                diagnosis = magneto.bisect(fault.program, inputs(fault.gradients))
                found &= diagnosis.stage == fault.stage
                said += f" {diagnosis.stage}: {diagnosis.kernel or diagnosis.pass_name or diagnosis.function}"[:60]
            _testing.clear_faults()
        right += found
        print(
            f"{'found' if found else 'NOT  '} {fault.name:36} {time.perf_counter() - start:5.1f} s  {said}", flush=True
        )
    print(f"{right} of {len(all_rows)}")
    return 0 if right >= len(all_rows) - 2 else 1


class Layer(torch.nn.Module):
    """Of a transformer, written out: about 40 operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.reshape(batch, length, 4, width // 4).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (width // 4) ** 0.5
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        h = self.up(self.norm2(x))
        return x + self.down(0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h**3))))


def transformer() -> int:
    """The times of the two figures."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Layer(64) for _ in range(12)])
    x = torch.randn(2, 16, 64)
    with tempfile.TemporaryDirectory() as folder, magneto.config.patch(debug_dir=folder, disk_cache=False):
        for after in ("dynamo", "aot"):
            magneto.reset()
            if after == "aot":
                _testing.plant_fault("lower.crash", "aten.tanh.default")
            start = time.perf_counter()
            with magneto.config.patch(repro_after=after), contextlib.suppress(magneto.exc.BackendCompilerFailed):
                with torch.no_grad():
                    magneto.compile(model, backend=broken("crashes", "torch.tanh") if after == "dynamo" else "magneto")(
                        x
                    )
            seconds = time.perf_counter() - start
            _testing.clear_faults()
            print(f"minify, {after}: {seconds:.1f} s, {len(script_lines(Path(folder)))} operators", flush=True)
        magneto.reset()
        _testing.plant_fault("kernel.wrong", "tanh")
        start = time.perf_counter()
        found = magneto.bisect(model, [x.requires_grad_()])
        _testing.clear_faults()
        print(f"bisect of a training step: {time.perf_counter() - start:.1f} s\n{found}")
    return 0 if found.kernel else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformer", action="store_true")
    options = parser.parse_args()
    logging.getLogger("torch._dynamo.magneto").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.exit(transformer() if options.transformer else table())
