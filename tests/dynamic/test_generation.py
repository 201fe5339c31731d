"""Language models that decode with a growing cache, and batches of all lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from size_programs import MATMUL_TAKES_SIZES

import magneto

transformers = pytest.importorskip("transformers")


def small_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval()


@torch.no_grad()
def generate(model: Any, tokens: int, cache: Any = None) -> list[int]:
    cache = transformers.DynamicCache() if cache is None else cache
    ids, position = torch.tensor([[1, 2, 3, 4, 5]]), torch.arange(5)
    made = []
    for _ in range(tokens):
        out = model(ids, past_key_values=cache, use_cache=True, cache_position=position)
        ids, position = out.logits[:, -1].argmax(-1, keepdim=True), position[-1:] + 1
        made.append(int(ids))
    return made


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_a_growing_cache_compiles_three_times(backend: str) -> None:
    model = small_llama()
    expected = generate(model, 200)
    compiled = magneto.compile(model, backend=backend)
    assert generate(compiled, 200) == expected
    assert magneto.stats()["frames"] <= 3
    assert magneto.stats()["fallbacks"] == {}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_a_cache_of_one_size_compiles_three_times(backend: str) -> None:
    model = small_llama()

    def cache() -> Any:
        return transformers.StaticCache(config=model.config, max_batch_size=1, max_cache_len=64)

    expected = generate(model, 50, cache())
    compiled = magneto.compile(model, backend=backend)
    assert generate(compiled, 50, cache()) == expected
    assert magneto.stats()["frames"] <= 3
    assert magneto.stats()["fallbacks"] == {}
    assert generate(compiled, 50, cache()) == expected
    assert magneto.stats()["frames"] <= 3


@torch.no_grad()
def test_batches_of_fifty_lengths_compile_twice() -> None:
    model = small_llama()
    compiled = magneto.compile(model)
    lengths = range(2, 52) if MATMUL_TAKES_SIZES else range(2, 8)
    for length in lengths:
        ids = torch.randint(0, 100, (2, length), generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert magneto.stats()["frames"] <= (2 if MATMUL_TAKES_SIZES else len(lengths))
