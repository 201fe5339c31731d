"""Gradients of large tensors: capturing them loads nothing of PyTorch's compiler, which its own shape functions would."""

from __future__ import annotations

from fresh import python

PROGRAM = """
import sys
import torch
import torch.nn.functional as F
import magneto

rows = torch.randn(1024, 512, requires_grad=True)
image = torch.randn(4, 16, 96, 96, requires_grad=True)
heads = [torch.randn(4, 8, 512, 32, requires_grad=True) for _ in range(3)]
scale, shift = (torch.randn(512, requires_grad=True) for _ in range(2))
kernel, weight = torch.randn(16, 16, 3, 3, requires_grad=True), torch.randn(16, requires_grad=True)

programs = {
    "layer norm": (lambda: F.layer_norm(rows, (512,), scale, shift), [rows, scale, shift]),
    "batch norm": (lambda: F.batch_norm(image, None, None, weight, weight, training=True), [image, weight]),
    "group norm": (lambda: F.group_norm(image, 4, weight, weight), [image, weight]),
    "attention": (lambda: F.scaled_dot_product_attention(*heads), heads),
    "convolution": (lambda: F.conv2d(image, kernel, weight, padding=1), [image, kernel, weight]),
    "dropout": (lambda: F.dropout(rows, 0.0, True), [rows]),
    "loss": (lambda: F.mse_loss(rows, rows.detach() + 1, reduction="none"), [rows]),
}
for name, (program, leaves) in programs.items():
    want = torch.autograd.grad(program().sin().sum(), leaves)
    compiled = magneto.compile(program, fullgraph=True)
    got = torch.autograd.grad(compiled().sin().sum(), leaves)
    for one, other in zip(got, want):
        assert one.stride() == other.stride() and torch.allclose(one, other, rtol=1e-3, atol=1e-3), name
    assert magneto.stats()["python_meta_kernels"] == {}, (name, magneto.stats()["python_meta_kernels"])
assert magneto.stats()["no_joint"] == {}
assert "torch._dynamo" not in sys.modules
"""


def test_large_gradients_load_no_compiler() -> None:
    done = python("-c", PROGRAM)
    assert done.returncode == 0, done.stderr
