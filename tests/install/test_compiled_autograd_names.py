"""torch._dynamo.compiled_autograd and its setting, under magneto.install()."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import magneto


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def cosine(x: Tensor) -> Tensor:
    return torch.cos(x)


def runs() -> int:
    return magneto.stats()["whole_backward_runs"]


class Backward:
    """Of two compiled functions and what eager does between; and eager's own beside it."""

    def __init__(self) -> None:
        self.sine, self.cosine = torch.compile(sine), torch.compile(cosine)

    def __call__(self) -> int:
        """How many programs computed gradients."""
        before = runs()
        x = torch.linspace(0, 1, 5).requires_grad_()
        (self.sine(x).exp() * self.cosine(x)).sum().backward()
        copy = x.detach().requires_grad_()
        (copy.sin().exp() * copy.cos()).sum().backward()
        torch.testing.assert_close(x.grad, copy.grad)
        return runs() - before


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("name", ["_enable", "enable", "enable_compiler"])
@pytest.mark.filterwarnings("ignore:torch._dynamo.compiled_autograd.enable_compiler")
def test_blocks(name: str, backend: str) -> None:
    backward = Backward()
    enable = getattr(torch._dynamo.compiled_autograd, name)
    for _ in range(3):
        with enable(torch.compile(backend=backend, fullgraph=True)):
            assert backward() == 2
            with torch._dynamo.compiled_autograd._disable():
                assert backward() == 0
    assert backward() == 0
    assert magneto.stats()["whole_backwards"] == 2


@pytest.mark.usefixtures("installed")
def test_setting() -> None:
    backward = Backward()
    engine = torch.autograd.Variable._execution_engine
    torch._dynamo.config.compiled_autograd = True
    assert backward() == 2
    with torch._dynamo.config.patch(compiled_autograd=False):
        assert backward() == 0
    assert backward() == 2
    magneto.uninstall()
    assert torch.autograd.Variable._execution_engine is engine
