"""Mode "eager-numerics": results, gradients and random numbers are eager's bit for bit. `tests/ops/test_exact_rows.py`
has the operators one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto

sys.path.append(str(Path(__file__).parent / "ops"))
from exact import same_bits

MODE = "eager-numerics"


def compiled(program: Any) -> Any:
    return magneto.compile(program, mode=MODE)


def bits_of(value: Any) -> list[torch.Tensor]:
    """The tensors that a program gives."""
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in bits_of(item)] if isinstance(value, (list, tuple)) else []


def assert_bits(ours: Any, theirs: Any) -> None:
    left, right = bits_of(ours), bits_of(theirs)
    assert len(left) == len(right)
    for i, (one, other) in enumerate(zip(left, right, strict=True)):
        assert one.stride() == other.stride() or one.numel() < 2
        assert same_bits(one, other), f"tensor {i}: off by {(one.double() - other.double()).abs().max()}"


try:
    import models
    from test_architectures_training import train
    from test_models import compiled_path

    FIRST, OTHERS = list(models.FIRST), sorted(set(models.MODELS) - set(models.FIRST))[::24]
except pytest.skip.Exception:  # without the transformers package
    FIRST, OTHERS = [], []


@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_models(name: str) -> None:
    model = models.build(name)
    with torch.no_grad(), compiled_path():
        expected = model(**models.inputs(name))
    with torch.no_grad():
        assert_bits(compiled(model)(**models.inputs(name)), expected)
    assert magneto.stats()["uncompiled"] == {}


# Gradients that pass a graph's border (docs/modes.md): several graphs read one tensor, or they lie otherwise.
AT_A_BORDER = {"bart", "pegasus", "whisper", "conditional_detr", "informer", "convnext"}


@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_training(name: str) -> None:
    with compiled_path():
        expected = train(name, lambda model: model)
    actual = train(name, compiled)
    if isinstance(expected, type):
        assert actual is expected
        return
    assert not isinstance(actual, type), actual
    assert actual[1].keys() == expected[1].keys()
    assert_bits([actual[0], actual[2]], [expected[0], expected[2]])
    if name in AT_A_BORDER:  # eager's operators in the same graphs
        magneto.reset()
        expected = train(name, lambda model: magneto.compile(model, backend="aot_eager"))
        assert not isinstance(expected, type), expected
    wrong = [key for key in expected[1] if not same_bits(actual[1][key], expected[1][key])]
    assert wrong == []


def strided(x: torch.Tensor) -> torch.Tensor:
    y = x[:, ::2]
    y.mul_(1.7)
    return y.sum() + y.sum(0).mean() + x.sum(1).std()


def turned(x: torch.Tensor) -> torch.Tensor:
    y = (x.t() * 1.3).sub_(0.1)
    return torch.cat([y.sum(0), y.softmax(0)[0], y.mean(1)])


def noisy(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 1.1 + 0.3, 0.4) * torch.rand_like(x)


def normed(x: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x * 1.1, (x.shape[1],)) * 0.3 + x
    return (y - y.mean(0)) / (y.var(0) + 1e-5).sqrt()


def used_often(x: torch.Tensor) -> torch.Tensor:
    y = x
    for i in range(7):
        y = y + (x * (0.1 + i)).tanh() * x
    return y * x.sigmoid()


def foreach(x: torch.Tensor) -> list[torch.Tensor]:
    rows = list(x.unbind(0))
    return list(torch._foreach_add(torch._foreach_mul(rows, 1.3), rows, alpha=0.7))


def written(x: torch.Tensor) -> torch.Tensor:
    x.add_(x * 0.3, alpha=0.7)
    return torch.addcmul(x, x, x, value=0.3).lerp(x * 2, 0.3)


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [strided, turned, noisy, normed, used_often, foreach, written]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: Callable[[torch.Tensor], Any], dtype: torch.dtype, dynamic: bool, autocast: bool) -> None:
    x = torch.randn(37, 53).to(dtype)

    def run(function: Callable[[torch.Tensor], Any], leaf: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(3)
        given = leaf.clone()  # what is written is no leaf
        with torch.autocast("cpu", enabled=autocast):
            results = bits_and_grads(function(given), leaf)
        return [*results, given.detach(), torch.rand(3)]

    def bits_and_grads(value: Any, leaf: torch.Tensor) -> list[torch.Tensor]:
        results = [value] if isinstance(value, torch.Tensor) else list(value)
        torch.autograd.backward(results, [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view_as(r) for r in results])
        assert leaf.grad is not None
        return [*(r.detach() for r in results), leaf.grad]

    ours = magneto.compile(program, mode=MODE, dynamic=dynamic)
    for _ in range(2):
        assert_bits(run(ours, x.clone().requires_grad_()), run(program, x.clone().requires_grad_()))


@pytest.mark.parametrize("layout", ["slice", "transposed", "expanded", "channels last"])
def test_what_is_written_keeps_its_layout(layout: str) -> None:
    """The order of a sum depends on it."""

    def given() -> torch.Tensor:
        x = torch.linspace(-3, 3, 8 * 30 * 8 * 8).reshape(8, 30, 8, 8).sin()
        return {
            "slice": lambda: x[:, ::2],
            "transposed": lambda: x.permute(3, 1, 0, 2),
            "expanded": lambda: x[:, :1].expand(8, 30, 8, 8),
            "channels last": lambda: x.to(memory_format=torch.channels_last),
        }[layout]()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if layout != "expanded":
            x.mul_(1.3)
        y = x * 0.7 + 0.1
        y.add_(x)
        return x.sum(), y.sum((2, 3)), y.sum(), y.mean(1), F.softmax(y, 1).sum(0), y.sum(0)

    with torch.no_grad():
        assert_bits(compiled(program)(given()), program(given()))


def test_it_fuses_what_is_exact() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return ((x * 1.1 + x).relu() - 0.3).exp() * 2 + 1

    x = torch.randn(1000)
    assert_bits(compiled(program)(x), program(x))
    stats = magneto.stats()
    assert stats["kernels"] == 2 and stats["externs"] == {"aten::exp": 1}


def test_its_names() -> None:
    assert MODE in magneto.list_modes() and "eager_numerics" in magneto.list_backends()
    with pytest.raises(magneto.exc.InvalidMode, match="Did you mean 'eager-numerics'"):
        magneto.compile(lambda x: x, mode="eager_numerics")
    magneto.install()
    try:
        x = torch.randn(100)
        assert_bits(torch.compile(lambda x: x * 3 + 1, mode=MODE)(x), x * 3 + 1)
    finally:
        magneto.uninstall()


def test_the_cache_on_disk_keeps_modes_apart(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).log()

    with magneto.config.patch(disk_cache_dir=str(tmp_path)):
        magneto.compile(program)(torch.randn(10))
        magneto.reset()
        compiled(program)(torch.randn(10))
        assert magneto.stats()["externs"] == {"aten::exp": 1, "aten::log": 1}
        magneto.reset()
        compiled(program)(torch.randn(10))
        assert magneto.stats()["cached_programs"] == 1
