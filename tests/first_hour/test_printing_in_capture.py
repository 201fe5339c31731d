"""What a tensor that is printed while code is captured leaves behind in the thread."""

from __future__ import annotations

import torch

import magneto

LAYERS = (
    torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode,
    torch._C.DispatchKey.FuncTorchDynamicLayerBackMode,
)


def wrong_call(x: torch.Tensor) -> torch.Tensor:
    try:  # its error has the arguments' text
        return torch.ops.aten.elu_backward.default(x, x, 2, 2, None, None)
    except RuntimeError:
        return x + 1


def test_transforms_work_afterwards() -> None:
    """The text of a tensor is made with torch.func switched off; a stand-in's ends with an error in the middle."""
    x = torch.ones(3)
    before = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in LAYERS]
    assert torch.equal(magneto.compile(wrong_call)(x), x + 1)
    assert [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in LAYERS] == before
    assert torch.func.hessian(lambda point: (point**3).sum())(x).equal(6 * torch.eye(3))
