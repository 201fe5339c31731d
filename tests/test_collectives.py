"""Collectives inside compiled functions, with one process: eager's results, each call a side exit, no fallback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import magneto

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)

def reduced_in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

programs = {
    "reduced": (1, lambda x: collectives.all_reduce(x * 2, "sum", [0]) + 1),
    "waited": (1, lambda x: collectives.wait_tensor(collectives.all_reduce(x, "sum", dist.group.WORLD)) * 3),
    "gathered": (1, lambda x: collectives.all_gather_tensor(x * 2, 0, [0]) + 1),
    "scattered": (1, lambda x: collectives.reduce_scatter_tensor(x * 2, "sum", 0, [0]) + 1),
    "reduced_in_place": (1, reduced_in_place),
}
for name, (least, program) in programs.items():
    magneto.reset()
    compiled = magneto.compile(program)
    for factor in (1, 2):
        x = torch.arange(6.0).view(2, 3) * factor
        want, got = program(x), compiled(x)
        assert torch.equal(want + 0, got + 0), name
    stats = magneto.stats()
    assert stats["breaks"] >= least and not stats["fallbacks"], (name, stats["break_reasons"], stats["fallbacks"])
dist.destroy_process_group()
"""


def test_collectives_with_one_process(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, str(tmp_path / "store")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
