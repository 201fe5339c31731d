"""Four things to find out, each with one command, whose output has the line to change."""

from __future__ import annotations

import os
from pathlib import Path

import fresh
import pytest

LOOP = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = 2
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(self.depth):
            x = self.layer(x).relu()
        return x

net = Net()
run = torch.compile(net)
for net.depth in (2, 3, 4, 5):
    run(torch.ones(2, 4))
"""
BREAKS = """
import torch

def step(x, i):
    x = x * 2
    print("step", i)
    return x + 1

@torch.compile
def run(x):
    for i in range(4):
        x = step(x, i)
    return x

run(torch.ones(3))
"""
OPERATOR = """
import torch

@torch.library.custom_op("stories::norm", mutates_args=())
def norm(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).double()

@norm.register_fake
def _(x):
    return torch.empty(4)

@torch.compile
def f(x):
    return norm(x) + 1

for _ in range(3):
    print(f(torch.ones(8)))
"""
SLOW = """
import torch

@torch.compile
def f(x, w):
    y = x.sin() * 2
    z = torch.linalg.solve(w, y)
    return z.sum() + y.cos().mean()

w = torch.eye(200) + 0.1
for _ in range(5):
    f(torch.ones(200, 200), w)
"""

# Program, command in front of it; what the output has.
STORIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "an int attribute in a loop's bound": (
        LOOP,
        ("explain",),
        ("│ the value of self.depth │", "program.py:11", "for _ in range(self.depth):", "the loop is unrolled"),
    ),
    "breaks in a loop": (
        BREAKS,
        ("explain",),
        ("│ 4     │ InputOutput: call of builtins.print │", "program.py:6", 'print("step", i)'),
    ),
    "a custom operator that breaks its promise": (
        OPERATOR,
        ("run",),
        ("stories::norm", "returned float64[8], its fake promised float32[4]", "program.py:14", "`return norm(x) + 1`"),
    ),
    "a slow kernel": (
        SLOW,
        ("report", "--live"),
        ("The slowest lines:\n  program.py:7  ", "z = torch.linalg.solve(w, y)"),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_one_command_names_the_line(story: str, tmp_path: Path) -> None:
    program, command, wanted = STORIES[story]
    (tmp_path / "program.py").write_text(program)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "MAGNETO"))}
    done = fresh.python(
        "-m",
        "magneto",
        *command,
        "program.py",
        timeout=300,
        cwd=tmp_path,
        env={**clean, "OMP_NUM_THREADS": "1", "MAGNETO_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    for part in wanted:
        assert part in done.stdout + done.stderr, (part, done.stdout, done.stderr)
    if story.startswith("a custom operator"):  # warned of once, and eager's results
        assert done.stderr.count("its fake promised") == 1 and done.stdout.count("[3., 3., 3.") == 3
    if story.startswith("an int"):
        assert done.stdout.count("the value of self.depth") == 1  # one row for the cause
