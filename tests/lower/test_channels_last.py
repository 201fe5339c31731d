"""Convolutions on channels that lie next to each other: eager's values and eager's strides."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from eager_support import check
from torch import nn

import magneto

pytestmark = pytest.mark.usefixtures("kernels")


def images(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape) / 8


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_one_convolution(groups: int, kernel: int) -> None:
    x, w, bias = images(2, 8, 19, 17), images(16, 8 // groups, kernel, kernel), images(16)
    check(lambda x, w, bias: F.conv2d(x, w, bias, 2, 1, 1, groups), x, w, bias)


def test_bias_that_is_no_contiguous_tensor() -> None:
    x, w, bias = images(2, 8, 19, 17), images(16, 8, 3, 3), images(16, 2)
    check(lambda x, w, bias: F.conv2d(x, w, bias[:, 1]), x, w, bias)
    check(lambda x, w, bias: F.conv2d(x, w, bias[0, :1].expand(16)), x, w, bias)


def test_between_convolutions() -> None:
    def function(x, a, b, c):
        y = F.relu(F.conv2d(x, a, padding=1))
        z = F.conv2d(y, b, padding=1) + y
        return F.conv2d(z.sigmoid(), c), z, y.sum((2, 3)), z.flatten(1) * 2, y.permute(0, 2, 3, 1)[:, 1:]

    check(function, images(2, 3, 20, 24), images(8, 3, 3, 3), images(8, 8, 3, 3), images(4, 8, 1, 1))


def test_one_after_the_other() -> None:
    def function(x, a, b):
        y = F.conv2d(x, a)
        return F.conv2d(y, b), y, y.clone(), F.conv2d(y.clone(), b)

    check(function, images(2, 3, 20, 24), images(8, 3, 3, 3), images(8, 8, 3, 3))


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_pooling(pool) -> None:
    def function(x, a, b):
        y = pool(F.relu(F.conv2d(x, a)), 3, 2, 1)
        return F.conv2d(y, b), y, F.adaptive_avg_pool2d(y, 1)

    check(function, images(2, 3, 33, 31), images(8, 3, 3, 3), images(8, 8, 3, 3))


def test_indices_of_pooling() -> None:
    check(
        lambda x, a: F.max_pool2d(F.conv2d(x, a), 2, return_indices=True),
        images(2, 3, 33, 31),
        images(8, 3, 3, 3),
    )


def test_tensors_of_other_layouts() -> None:
    weight = images(8, 4, 3, 3)
    x = images(2, 4, 20, 24).to(memory_format=torch.channels_last)
    check(lambda x, w: (F.conv2d(x, w), F.conv2d(x, w).relu()), x, weight)
    check(lambda x, w: F.conv2d(x, w).relu(), images(2, 4, 24, 20).transpose(2, 3), weight)
    check(lambda x, w: F.conv2d(x[:, :, ::2, 1:], w) + 1, images(2, 4, 40, 20), weight)
    check(lambda x, w: F.conv2d(x, w) + 1, images(2, 1, 20, 24).expand(2, 4, 20, 24), weight)
    check(lambda x, w: F.conv2d(x, w.to(memory_format=torch.channels_last)), images(2, 4, 20, 24), weight)


def test_small_ones_and_others() -> None:
    check(lambda x, w: F.conv2d(x, w) + 1, images(1, 3, 6, 6), images(4, 3, 3, 3))
    check(lambda x, w: F.conv2d(x, w) + 1, images(2, 1, 6, 6), images(1, 1, 3, 3))
    check(lambda x, w: F.conv_transpose2d(x, w) + 1, images(2, 3, 9, 9), images(3, 4, 3, 3))
    check(lambda x, w: F.conv1d(x, w) + 1, images(2, 3, 90), images(4, 3, 3))
    check(lambda x, w: F.conv3d(x, w) + 1, images(2, 3, 9, 9, 9), images(4, 3, 3, 3, 3))
    check(lambda x, w: F.conv2d(x, w) + 1, images(2, 3, 9, 9).double(), images(4, 3, 3, 3).double())
    check(lambda x, w: F.conv2d(x, w) + 1, images(2, 4, 9, 9).bfloat16(), images(4, 4, 3, 3).bfloat16())


def test_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
        nn.Conv2d(16, 40, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 10),
    ).eval()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
        x = images(3, 3, 64, 48)
        compiled = magneto.compile(copy.deepcopy(model), fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
