"""Data parallel training on two processes: losses and buffers are eager's, and what exchanges tensors is no graph."""

from __future__ import annotations

from typing import Any

import data_parallel
import pytest
from processes import found_by_each
from torch import distributed

if not distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_each(data_parallel.__file__, 2, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", data_parallel.WAYS)
def test_two_processes_train_as_eager(name: str, outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        far, graphs, no_joint, breaks, parts = outcome[name]
        assert far < 1e-5
        assert (parts > 2) == (name in data_parallel.IN_PARTS)
        assert graphs == data_parallel.WAYS[name][1]
        assert not no_joint
        # What exchanges tensors runs under CPython, as a whole. FSDP watches its modules by weak references with
        # callbacks, so that a loop variable that lets go of one might be heard of.
        assert all(reason.startswith(("DisabledFunction", "Finalizer: an object of type FSDP")) for reason in breaks)


IN_TURNS = ["bucket 1", "part 2", "bucket 2", "part 3", "bucket 3"]


@pytest.mark.parametrize("name", ["around", "compiled", "views"])
def test_buckets_are_exchanged_while_the_backward_runs(name: str, outcomes: list[dict[str, Any]]) -> None:
    """A part of it begins when the exchange of what the one before has computed is under way, on both processes."""
    for outcome in outcomes:
        assert outcome["events"][name] == IN_TURNS
        assert outcome["parts"] == 9  # of three backwards


def test_a_backward_is_whole_where_asked_for(outcomes: list[dict[str, Any]]) -> None:
    """config.optimize_ddp is off."""
    for outcome in outcomes:
        assert outcome["events"]["off"] == ["bucket 1", "bucket 2", "bucket 3"]


def test_the_processes_share_one_compile(outcomes: list[dict[str, Any]]) -> None:
    """Each kernel is compiled by one of them: the other one finds it, or waits for it."""
    (wanted, made), (also_wanted, made_too) = (outcome["kernels"][:2] for outcome in outcomes)
    assert 0 < made + made_too <= wanted == also_wanted
