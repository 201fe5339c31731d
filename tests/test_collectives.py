"""Collectives inside compiled functions, with one, two and four processes: eager's results, in one graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import collectives
import distributed_tensors
import pytest
from processes import found_by_each
from torch import distributed

if not distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)


@pytest.fixture(scope="module", params=[1, 2, 4])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_each(collectives.__file__, request.param, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", collectives.PROGRAMS)
def test_each_process_gets_what_eager_gives(name: str, outcomes: list[dict[str, Any]]) -> None:
    for rank, outcome in enumerate(outcomes):
        for backend, every, dynamic, problems, breaks in outcome[name]:
            assert not problems, (backend, every, dynamic)
            has_exit = name in collectives.EXITS and (rank == 0 or name != "one_process_prints")
            assert breaks > 0 if has_exit else breaks == 0 or every


@pytest.fixture(scope="module", params=[1, 2, 4])
def of_tensors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_each(distributed_tensors.__file__, request.param, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", distributed_tensors.PROGRAMS)
def test_distributed_tensors(name: str, of_tensors: list[dict[str, Any]]) -> None:
    for outcome in of_tensors:
        for backend, every, gradients, problems, breaks, graphs in outcome[name]:
            way = backend, every, gradients
            assert not problems, way
            if every or (gradients and backend == "eager"):
                continue
            has_exit = name in distributed_tensors.EXITS or gradients and name in distributed_tensors.GRADIENT_EXITS
            assert breaks > 0 if has_exit else breaks == 0, way
            assert name not in distributed_tensors.VARYING or graphs == 2, way


def test_a_distributed_tensor_that_differs(of_tensors: list[dict[str, Any]]) -> None:
    """In its placements, mesh, sizes, dtype; and a plain one."""
    for outcome in of_tensors:
        assert not outcome["changed"]


def test_a_group_made_anew_is_another_one(tmp_path: Path) -> None:
    program = """
import sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import magneto

def program(x):
    group = dist.group.WORLD
    return collectives.all_gather_tensor(x, 0, group) + group.size(), dist.get_rank()

compiled = magneto.compile(program, fullgraph=True)
x = torch.ones(2, 2)
for turn in range(3):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}{turn}", rank=0, world_size=1)
    for _ in range(2):
        (want, rank), (got, got_rank) = program(x), compiled(x)
        assert torch.equal(want + 0, got) and rank == got_rank == 0
    assert magneto.stats()["graphs"] == turn + 1, magneto.stats()
    dist.destroy_process_group()
try:
    compiled(x)
except (ValueError, RuntimeError, AttributeError) as error:
    found = type(error)
try:
    program(x)
except (ValueError, RuntimeError, AttributeError) as error:
    assert type(error) is found
else:
    raise AssertionError("eager raised nothing")
"""
    run = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", program, str(tmp_path / "store")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
