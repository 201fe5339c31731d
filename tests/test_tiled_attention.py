"""Attention by tiles: eager's results, and nothing of the size of all scores (docs/attention.md)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
import torch.utils._pytree as pytree
from fresh import python
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import magneto

HEADS, LENGTH, WIDTH = 4, 400, 32
SLOPES = torch.linspace(0.1, 1, HEADS)
DOCUMENT = torch.arange(LENGTH) // 130
LENGTHS = torch.tensor([100, 350])
BIAS = torch.sin(torch.arange(float(LENGTH * LENGTH))).view(LENGTH, LENGTH)
FULL = torch.cos(torch.arange(float(2 * HEADS * LENGTH * LENGTH))).view(2, HEADS, LENGTH, LENGTH)
TABLE = torch.cos(torch.arange(float(HEADS * 2 * LENGTH))).view(HEADS, 2 * LENGTH)

Program = Callable[..., Any]
SCORES: dict[str, Program | None] = {
    "nothing": None,
    "alibi": lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
    "bias": lambda s, b, h, i, j: s + BIAS[i, j],
    "full bias": lambda s, b, h, i, j: s + FULL[b, h, i, j],
    "table": lambda s, b, h, i, j: s + TABLE[h, i - j + LENGTH],
    "soft cap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "mask": lambda s, b, h, i, j: torch.where((i - j).abs() < 90, s, -float("inf")),
    "by place": lambda s, b, h, i, j: torch.where((b + h) % 2 == 0, s * 2, s - i * 0.01),
}
MASKS: dict[str, Program | None] = {
    "all": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 70),
    "documents": lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j),
    "by batch": lambda b, h, i, j: j < LENGTHS[b],
    "by head": lambda b, h, i, j: (i - j).abs() < (h + 1) * 40,
    "prefix": lambda b, h, i, j: (i >= j) | (j < 50),
    "rows without keys": lambda b, h, i, j: (i > 200) & (j < i),
    "no keys": lambda b, h, i, j: i < 0,
}
STATISTICS = flex.AuxRequest(lse=True)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compared with are PyTorch's operators, which its own compiler would be called for."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield
    assert "torch._inductor.compile_fx" not in sys.modules


def tensors(
    batch: int = 2,
    heads: int = HEADS,
    length: int = LENGTH,
    width: int = WIDTH,
    *,
    keys: int | None = None,
    key_heads: int | None = None,
    values: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape = (batch, key_heads or heads, keys or length)
    made = [torch.randn(batch, heads, length, width), torch.randn(*shape, width), torch.randn(*shape, values or width)]
    return [tensor.to(dtype) for tensor in made]


def mask_of(name: str, length: int = LENGTH, keys: int | None = None) -> BlockMask | None:
    mask = MASKS[name]
    by_batch, by_head = (2 if name == "by batch" else None), (HEADS if name == "by head" else None)
    return mask and create_block_mask(mask, by_batch, by_head, length, keys or length, device="cpu")


def leaves(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]


def assert_alike(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    for mine, own in zip(leaves(got), leaves(want), strict=True):
        assert (mine.dtype, mine.stride(), mine.requires_grad) == (own.dtype, own.stride(), own.requires_grad)
        torch.testing.assert_close(mine, own, rtol=tolerance, atol=tolerance, equal_nan=True)


def is_tiled() -> bool:
    return "magneto::tiled_attention" in magneto.stats()["externs"]


def check(function: Program, *args: Any, tolerance: float = 2e-5, tiled: bool = True, **options: Any) -> None:
    magneto.reset()
    with torch.no_grad():
        function(*args)  # its first call imports a part of torch, which is seen from outside
        compiled = magneto.compile(function, fullgraph=True, **options)
        for _ in range(2):
            assert_alike(compiled(*args), function(*args), tolerance)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"]) == (1, 0)
    assert is_tiled() == tiled


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_functions(score: str, mask: str) -> None:
    blocks = mask_of(mask)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score], block_mask=blocks), *tensors())


@pytest.mark.parametrize("mask", ["all", "causal", "rows without keys", "no keys"])
def test_logarithms_of_sums(mask: str) -> None:
    blocks = mask_of(mask)
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, return_aux=STATISTICS), *tensors())


def test_interpreted() -> None:
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES["mask"]), *tensors(1, 1, 330, 8), backend="interpreter"
    )


@pytest.mark.parametrize("score", ["mask", "alibi", "bias"])
def test_dynamic_lengths(score: str) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=SCORES[score])

    with torch.no_grad():
        function(*tensors())
        compiled = magneto.compile(function, fullgraph=True, dynamic=True)
        magneto.reset()
        for batch, length in ((2, 398), (2, 399), (3, 128), (2, 257), (2, 33)):
            given = tensors(batch, length=length)
            assert_alike(compiled(*given), function(*given))
        assert (magneto.stats()["graphs"], is_tiled()) == (1, True)
        given = tensors(length=1)
        assert_alike(compiled(*given), function(*given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_other_backends_compute_all_scores(backend: str) -> None:
    blocks = mask_of("causal")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks), *tensors(), backend=backend, tiled=False)


@pytest.mark.parametrize(
    "given",
    [
        {"keys": 650},
        {"keys": 257, "length": 520},
        {"heads": 8, "key_heads": 2},
        {"values": 48},
        {"batch": 1, "heads": 1, "length": 1000},
        {"width": 7},
    ],
    ids=str,
)
def test_shapes(given: dict[str, int]) -> None:
    q, k, v = tensors(**given)
    blocks = create_block_mask(lambda b, h, i, j: i + 200 >= j, None, None, q.shape[2], k.shape[2], device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, enable_gqa=True, return_aux=STATISTICS), q, k, v)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    """At most twice as far from float64 as eager."""
    blocks = mask_of("causal")
    q, k, v = tensors(dtype=dtype)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=blocks, return_aux=STATISTICS)

    check(function, q, k, v, tolerance={torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 2e-5))
    with torch.no_grad():
        exact = leaves(function(q.double(), k.double(), v.double()))
        got, own = (leaves(each(q, k, v)) for each in (magneto.compile(function), function))
    for mine, eager, want in zip(got, own, exact, strict=True):
        error, allowed = ((each.double() - want).abs().max() for each in (mine, eager))
        assert error <= 2 * allowed + 1e-14


@pytest.mark.parametrize("mask", ["causal", "documents"])
def test_values_of_masked_keys_count_where_they_are_not_finite(mask: str) -> None:
    q, k, v = tensors()
    v[0, 1, 399, 3], v[1, :, 390] = float("inf"), float("nan")
    k[0, 2, 380], q[1, 1, 7] = float("inf"), float("nan")
    blocks = mask_of(mask)
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks, return_aux=STATISTICS), q, k, v)


def test_scores_that_are_not_finite() -> None:
    infinite = torch.zeros(LENGTH)
    infinite[5], infinite[300] = float("inf"), float("nan")
    blocks = mask_of("window")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + infinite[j], block_mask=blocks, return_aux=STATISTICS
        )

    check(function, *tensors())


def test_the_mask_function_counts_not_the_blocks() -> None:
    """Eager reads no blocks."""
    other = mask_of("rows without keys")
    assert other is not None
    blocks = BlockMask.from_kv_blocks(
        other.kv_num_blocks,
        other.kv_indices,
        other.full_kv_num_blocks,
        other.full_kv_indices,
        mask_mod=MASKS["causal"],
        seq_lengths=(LENGTH, LENGTH),
    )
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks), *tensors())


@pytest.mark.parametrize("way", ["table", "index"])
def test_indices_in_masked_tiles_are_checked(way: str) -> None:
    index = torch.arange(LENGTH)
    index[-1] = 1000
    table = torch.zeros(LENGTH, 300 if way == "table" else LENGTH)
    blocks = create_block_mask(lambda b, h, i, j: j < 100, None, None, LENGTH, LENGTH, device="cpu")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        at = (lambda j: j) if way == "table" else (lambda j: index[j])
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i, at(j)], block_mask=blocks)

    with torch.no_grad():
        for each in (function, magneto.compile(function)):
            with pytest.raises(IndexError, match="is out of bounds for dimension 1"):
                each(*tensors())


def test_captured_tensors_change() -> None:
    slopes, blocks = SLOPES.clone(), mask_of("causal")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - slopes[h] * (i - j), block_mask=blocks)

    with torch.no_grad():
        compiled = magneto.compile(function, fullgraph=True)
        for _ in range(3):
            assert_alike(compiled(*tensors()), function(*tensors()))
            slopes.mul_(2)


def test_in_a_layer() -> None:
    torch.manual_seed(0)
    project, out, blocks = torch.nn.Linear(128, 384), torch.nn.Linear(128, 128), mask_of("causal")

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            q, k, v = project(x).view(2, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            made = flex_attention(q, k, v, score_mod=SCORES["alibi"], block_mask=blocks)
            x = x + out(made.transpose(1, 2).reshape(2, LENGTH, 128))
        return x

    check(function, torch.randn(2, LENGTH, 128))


def test_autocast() -> None:
    project = torch.nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = project(x).view(1, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
            return flex_attention(q, k, v, score_mod=SCORES["alibi"])

    check(function, torch.randn(1, LENGTH, HEADS * WIDTH), tolerance=2e-2)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        blocks = mask_of("window")
        check(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks), *tensors())
    finally:
        torch.set_num_threads(before)


def test_short_ones_compute_all_scores() -> None:
    check(flex_attention, *tensors(length=1, keys=900), tiled=False)


def test_a_score_function_that_kernels_do_not_compute() -> None:
    """Scores of other keys: no tile knows them."""
    check(lambda q, k, v: torch._safe_softmax((q @ k.mT).cumsum(-1), -1) @ v, *tensors(), tiled=False)


def test_written_out() -> None:
    check(lambda q, k, v: torch._safe_softmax((q @ k.mT) * 0.2 + BIAS, -1) @ v, *tensors())


def test_scores_that_are_handed_out() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q @ k.mT
        return torch._safe_softmax(scores * 0.2, -1) @ v, scores

    check(function, *tensors(), tiled=False)


MEMORY = """
import resource, torch, magneto
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
q, k, v = (torch.randn(1, 8, 8192, 16) for _ in range(3))
causal = create_block_mask(lambda b, h, i, j: i - j < 300, None, None, 1024, 1024, device="cpu")
def function(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where((i >= j) & (i - j < 300), s, -float("inf")))
with torch.no_grad():
    compiled = magneto.compile(function, fullgraph=True)
    compiled(q[:, :, :1024], k[:, :, :1024], v[:, :, :1024])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    compiled(q, k, v)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory() -> None:
    """All scores would take 2 GiB."""
    done = python("-c", MEMORY)
    assert int(done.stdout.split()[-1]) < 100 * 1024


KEPT = """
import sys, torch, magneto
magneto.config.disk_cache_dir = sys.argv[1]
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 512, 16) for _ in range(3))
blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cpu")
with torch.no_grad():
    print(magneto.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))(q, k, v).sum().item())
print("libmagneto_codegen" in open("/proc/self/maps").read(), "magneto::tiled_attention" in magneto.stats()["externs"])
"""


def test_kept_on_disk(tmp_path: Path) -> None:
    runs = [python("-c", KEPT, str(tmp_path)).stdout for _ in range(2)]
    assert [run.split()[0] for run in runs] == [runs[0].split()[0]] * 2
    assert [run.split()[1:] for run in runs] == [["True", "True"], ["False", "True"]]


def test_programs_ahead_of_time_compute_all_scores(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=SCORES["mask"])

    with torch.no_grad():
        want = Model()(*tensors())
        path = magneto.aot_compile(Model(), tuple(tensors()), path=tmp_path / "model")
        assert_alike(magneto.aot_load(path)(*tensors()), want)
