"""Cases of rule_sizes for the operators that autograd's formulas call. Eager checks little of what these are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
ALL = [True, True, True]


def of(op: Any, *rest: Any) -> Callable[..., Any]:
    """(grad, x), and numbers."""
    return lambda grad, x: op(grad, x, *rest)


def loss(op: Any, *rest: Any) -> Callable[..., Any]:
    return lambda x, y: op(x, x.sigmoid(), y.sigmoid(), *rest)


def not_empty(program: Callable[..., Any]) -> Callable[..., Any]:
    """Eager's kernel divides by zero, or reads past the end, where there is nothing."""

    def checked(*args: torch.Tensor) -> Any:
        for x in args:
            if x.numel() == 0:
                raise ValueError("nothing there")
        return program(*args)

    return checked


def batch_norm(grad: torch.Tensor, x: torch.Tensor) -> Any:
    mean, scale = x.mean((0, 2)), x.var((0, 2)).add(1).rsqrt()
    return aten.native_batch_norm_backward(grad, x, None, None, None, mean, scale, True, 1e-5, [True, False, False])[0]


def layer_norm(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
    _, mean, scale = torch.native_layer_norm(x, (x.shape[1],), w, w, 1e-5)
    return aten.native_layer_norm_backward(grad, x, (x.shape[1],), mean, scale, w, w, ALL)


def group_norm(grad: torch.Tensor, x: torch.Tensor) -> Any:
    _, mean, scale = torch.native_group_norm(x, None, None, x.shape[0], 6, x.shape[2], 3, 1e-5)
    return aten.native_group_norm_backward(
        grad, x, mean, scale, None, x.shape[0], 6, x.shape[2], 3, [True, False, False]
    )[0]


def ctc(grad: torch.Tensor, x: torch.Tensor) -> Any:
    """All of the time, one label; which class a label is, eager does not check."""
    if x.shape[0] < 2 or x.shape[2] < 2 or x.numel() == 0 or grad.shape[0] != x.shape[1]:
        raise ValueError("too little for a label")
    one = (x[0, :, 0] * 0).long() + 1
    targets, lengths = torch.stack([one, one], 1), one * 0 + x.shape[0]
    losses, scores = aten._ctc_loss.Tensor(x, targets, lengths, one, 0, False)
    return aten._ctc_loss_backward.Tensor(grad, x, targets, lengths, one, losses, scores, 0, False)


def convolution(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.conv1d(x, w)
    return aten.convolution_backward(y, x, w, [w.shape[0]], [1], [0], [1], False, [0], 1, ALL)


def pool(dims: int, kind: str) -> Callable[..., Any]:
    """Windows of two; or one value for all; or the greatest of those."""

    def program(x: torch.Tensor) -> Any:
        two, none, one = [2] * dims, [0] * dims, [1] * dims
        if kind == "avg":
            y = getattr(F, f"avg_pool{dims}d")(x, 2)
            return getattr(aten, f"avg_pool{dims}d_backward")(y, x, two, two, none, False, True, None)
        if kind == "adaptive_avg":
            y = getattr(F, f"adaptive_avg_pool{dims}d")(x, 1)
            return getattr(aten, f"_adaptive_avg_pool{dims}d_backward")(y, x)
        if kind == "max":
            y, at = getattr(aten, f"max_pool{dims}d_with_indices")(x, two)
            return getattr(aten, f"max_pool{dims}d_with_indices_backward")(y, x, two, two, none, one, False, at)
        y, at = getattr(aten, f"adaptive_max_pool{dims}d")(x, one)
        return getattr(aten, f"adaptive_max_pool{dims}d_backward")(y, x, at)

    return program


def padded(dims: int, kind: str) -> Callable[..., Any]:
    amounts = [1] * (2 * dims)

    def program(x: torch.Tensor) -> Any:
        y = getattr(aten, f"{kind}_pad{dims}d")(x, amounts)
        return getattr(aten, f"{kind}_pad{dims}d_backward")(y, x, amounts)

    return program


def upsampled(name: str, dims: int, *rest: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> Any:
        size = [2 * each for each in x.shape[2:]]
        y = getattr(aten, f"upsample_{name}{dims}d")(x, size, *rest, *[None] * dims)
        return getattr(aten, f"upsample_{name}{dims}d_backward")(y, size, list(x.shape), *rest, *[None] * dims)

    return program


def grid(dims: int) -> Callable[..., Any]:
    op = getattr(aten, f"grid_sampler_{dims}d_backward")

    def program(x: torch.Tensor, at: torch.Tensor) -> Any:
        y = F.grid_sample(x, at, align_corners=False)
        return op(y, x, at, 0, 0, False, [True, True])

    return program


def attention(q: torch.Tensor, k: torch.Tensor) -> Any:
    y, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(y, q, k, k, y, sums, 0.0, False)


def recurrent_layer(x: torch.Tensor, w: torch.Tensor, wh: torch.Tensor, h: torch.Tensor) -> Any:
    """Of three numbers. What the forward would keep for its backward is bytes, of which there are enough."""
    layer, y = (x, w, wh, w[:, 0], w[:, 0], h, h), x[..., :1] + h
    space = torch.full((1 << 18,), 62, dtype=torch.uint8)
    return aten.mkldnn_rnn_layer_backward(*layer, y, h, h, y, h, h, False, 2, 3, 1, True, True, False, [], False, space)


PAIR = "a! b!, a! b!"
CASES: dict[str, tuple[str, Callable[..., Any]]] = {
    "aten::_softmax_backward_data": (PAIR, of(aten._softmax_backward_data, 1, torch.float32)),
    "aten::_log_softmax_backward_data": (PAIR, of(aten._log_softmax_backward_data, 0, torch.float32)),
    "aten::native_dropout_backward": (PAIR, lambda grad, x: aten.native_dropout_backward(grad, x > 0, 2.0)),
    "aten::rrelu_with_noise_backward": (
        PAIR, lambda grad, x: aten.rrelu_with_noise_backward(grad, x, x.sigmoid(), 0.1, 0.3, True, False)
    ),
    "aten::glu_backward": ("a! b!, a! 2b!", of(aten.glu_backward, 1)),
    "aten::log_sigmoid_backward": (PAIR, lambda grad, x: aten.log_sigmoid_backward(grad, x, x.abs().neg().exp())),
    "aten::mse_loss_backward": (PAIR, loss(aten.mse_loss_backward, 0)),
    "aten::smooth_l1_loss_backward": (PAIR, loss(aten.smooth_l1_loss_backward, 0, 1.0)),
    "aten::huber_loss_backward": (PAIR, loss(aten.huber_loss_backward, 0, 1.0)),
    "aten::soft_margin_loss_backward": (PAIR, loss(aten.soft_margin_loss_backward, 0)),
    "aten::binary_cross_entropy_backward": (PAIR, loss(aten.binary_cross_entropy_backward, None, 0)),
    "aten::nll_loss_backward": (
        "a!, a! b!, i:a!",
        not_empty(lambda grad, x, y: aten.nll_loss_backward(grad, x, y * 0, None, 0, -100, x.sum())),
    ),
    "aten::nll_loss2d_backward": (
        "a! c! d!, a! b! c! d!, i:a! c! d!",
        not_empty(lambda grad, x, y: aten.nll_loss2d_backward(grad, x, y * 0, None, 0, -100, x.sum())),
    ),
    "aten::_ctc_loss_backward.Tensor": ("b!, a! b! c!", ctc),
    "aten::native_layer_norm_backward": ("a! b!, a! b!, b!", layer_norm),
    "aten::native_batch_norm_backward": ("a! b! c!, a! b! c!", not_empty(batch_norm)),
    "aten::native_group_norm_backward": ("a! 6! c!, a! 6! c!", group_norm),
    "aten::_weight_norm_interface_backward": (
        "a! b!, a! b!, a! 1!, a! 1!",
        not_empty(lambda grad, v, g, norms: aten._weight_norm_interface_backward(grad, v, g, norms, 0)),
    ),
    "aten::convolution_backward": ("a! b! c!, d! b! 1!", convolution),
    "aten::mkldnn_rnn_layer_backward": ("a! b! 2!, 12! 2!, 12! 3!, b! 3!", not_empty(recurrent_layer)),
    "aten::embedding_dense_backward": (
        "a! b! c!, i:a! b!", lambda grad, i: aten.embedding_dense_backward(grad, i, grad.shape[0] + 2, -1, False)
    ),
    "aten::select_backward": ("a! b!", lambda grad: aten.select_backward(grad, [grad.shape[0], 4, grad.shape[1]], 1, 2)),
    "aten::slice_backward": (
        "a! b!", lambda grad: aten.slice_backward(grad, [grad.shape[0] + 3, grad.shape[1]], 0, 3, 2**63 - 1, 1)
    ),
    "aten::diagonal_backward": (
        "a! b!", lambda grad: aten.diagonal_backward(grad, [grad.shape[0], grad.shape[1], grad.shape[1]], 0, 1, 2)
    ),
    "aten::unfold_backward": (
        "a! b! 2!", lambda grad: aten.unfold_backward(grad, [grad.shape[0], 2 * grad.shape[1]], 1, 2, 2)
    ),
    "aten::masked_scatter_backward": (
        "a! b!", lambda grad: aten.masked_scatter_backward(grad, grad > 9, [grad.shape[1]])
    ),
    "aten::max_pool2d_with_indices_backward": ("a! b! c! d!", pool(2, "max")),
    "aten::max_pool3d_with_indices_backward": ("a! b! c! d! 4!", pool(3, "max")),
    "aten::avg_pool2d_backward": ("a! b! c! d!", pool(2, "avg")),
    "aten::avg_pool3d_backward": ("a! b! c! d! 4!", pool(3, "avg")),
    "aten::_adaptive_avg_pool2d_backward": ("a! b! c! d!", pool(2, "adaptive_avg")),
    "aten::_adaptive_avg_pool3d_backward": ("a! b! c! d! 4!", pool(3, "adaptive_avg")),
    "aten::adaptive_max_pool2d_backward": ("a! b! c! d!", pool(2, "adaptive_max")),
    "aten::adaptive_max_pool3d_backward": ("a! b! c! d! 4!", pool(3, "adaptive_max")),
    "aten::reflection_pad1d_backward": ("a! b! c!", padded(1, "reflection")),
    "aten::reflection_pad2d_backward": ("a! b! c! d!", padded(2, "reflection")),
    "aten::reflection_pad3d_backward": ("a! b! c! d! 4!", padded(3, "reflection")),
    "aten::replication_pad1d_backward": ("a! b! c!", padded(1, "replication")),
    "aten::replication_pad2d_backward": ("a! b! c! d!", padded(2, "replication")),
    "aten::replication_pad3d_backward": ("a! b! c! d! 4!", padded(3, "replication")),
    "aten::grid_sampler_2d_backward": ("a! b! c! d!, a! d! c! 2!", grid(2)),
    "aten::grid_sampler_3d_backward": ("a! b! c! d! 4!, a! d! c! 4! 3!", grid(3)),
    "aten::upsample_nearest1d_backward": ("a! b! c!", upsampled("nearest", 1)),
    "aten::upsample_nearest2d_backward": ("a! b! c! d!", upsampled("nearest", 2)),
    "aten::upsample_nearest3d_backward": ("a! b! c! d! 4!", upsampled("nearest", 3)),
    "aten::upsample_linear1d_backward": ("a! b! c!", upsampled("linear", 1, False)),
    "aten::upsample_bilinear2d_backward": ("a! b! c! d!", upsampled("bilinear", 2, False)),
    "aten::upsample_bicubic2d_backward": ("a! b! c! d!", upsampled("bicubic", 2, False)),
    "aten::upsample_trilinear3d_backward": ("a! b! c! d! 4!", upsampled("trilinear", 3, False)),
    "magneto::cumprod_backward": (
        "a! b!", lambda x: torch.ops.magneto.cumprod_backward(x.sin(), x, 0, x.cumprod(0))
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (
        "a! 2! b! 8!, a! 2! c! 8!",
        not_empty(attention),
    ),
}  # fmt: skip
