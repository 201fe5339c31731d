"""Models that draw samples: language models token by token, diffusion, searches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from small_gpt import GPT
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

scripts = Scripts()


@scripts
def own_loop_around_a_compiled_forward(compiled: Compiled) -> Any:
    """`model.forward` is replaced by its compiled form; the sampling loop stays eager and the text grows."""
    model = GPT().eval()
    model.forward = compiled(model.forward)
    return model.generate(torch.zeros(1, 1, dtype=torch.long), 20, 0.8, 5)


@scripts
def compiled_sampling_loop(compiled: Compiled) -> Any:
    """The whole loop, which draws random numbers, is compiled."""
    model = GPT().eval()
    generate = compiled(model.generate)
    return generate(torch.zeros(1, 1, dtype=torch.long), 12, 0.8, 5)


def small_gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=60, n_positions=64, bos_token_id=0, eos_token_id=1)
    return GPT2LMHeadModel(config).eval()


@scripts
def greedy_generation_of_transformers(compiled: Compiled) -> Any:
    """transformers' generate around a compiled forward."""
    model = small_gpt2()
    model.forward = compiled(model.forward)
    prompt = torch.full((1, 3), 5)
    return model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)


@scripts
def beams_of_transformers(compiled: Compiled) -> Any:
    """Beam search of transformers, which reorders the cache between the steps."""
    model = small_gpt2()
    model.forward = compiled(model.forward)
    prompt = torch.full((2, 3), 5)
    return model.generate(prompt, max_new_tokens=6, num_beams=3, pad_token_id=0)


@scripts
def beam_search_in_lists(compiled: Compiled) -> Any:
    """Beams as Python lists of tokens and scores, sorted with a key."""
    table = torch.randn(6, 6)

    def search(start: int, length: int, width: int) -> tuple[list[list[int]], Tensor]:
        beams = [([start], 0.0)]
        for _ in range(length):
            candidates = []
            for tokens, score in beams:
                values, indices = F.log_softmax(table[tokens[-1]], -1).topk(width)
                candidates += [(tokens + [i], score + v) for v, i in zip(values.tolist(), indices.tolist())]
            beams = sorted(candidates, key=lambda beam: -beam[1])[:width]
        return [tokens for tokens, _ in beams], torch.tensor([score for _, score in beams])

    return compiled(search)(0, 4, 2)


@scripts
def denoising_diffusion(compiled: Compiled) -> Any:
    """The sampler of a diffusion model: a loop backwards over time, for two batch sizes."""
    steps = 10
    betas = torch.linspace(1e-4, 0.02, steps)
    alphas = 1 - betas
    products = alphas.cumprod(0)
    network = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))

    @torch.no_grad()
    def sample(count: int) -> Tensor:
        x = torch.randn(count, 2)
        for t in reversed(range(steps)):
            error = network(torch.cat([x, torch.full((count, 1), t / steps)], 1))
            noise = torch.randn_like(x) if t > 0 else torch.zeros_like(x)
            x = (x - betas[t] / (1 - products[t]).sqrt() * error) / alphas[t].sqrt() + betas[t].sqrt() * noise
        return x

    sample = compiled(sample)
    return sample(4), sample(5)


@scripts
def variational_autoencoder(compiled: Compiled) -> Any:
    """Reparametrized samples and a divergence by torch.distributions, trained for one step."""
    encoder = nn.Linear(20, 8)
    decoder = nn.Linear(4, 20)

    def loss_of(x: Tensor) -> Tensor:
        mean, log_variance = encoder(x).chunk(2, -1)
        posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        code = posterior.rsample()
        divergence = torch.distributions.kl_divergence(posterior, prior).sum(-1)
        rebuilt = F.binary_cross_entropy_with_logits(decoder(code), x.sigmoid(), reduction="none")
        return rebuilt.sum(-1) + divergence

    losses = compiled(loss_of)(torch.randn(5, 20))
    losses.mean().backward()
    return losses.detach(), encoder.weight.grad


@scripts
def gumbel_softmax(compiled: Compiled) -> Any:
    def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
        return F.gumbel_softmax(logits, tau=0.5, hard=True), F.gumbel_softmax(logits, tau=2.0)

    return compiled(choose)(torch.randn(3, 4))


class Cache:
    """Keys and values of each layer, as lists of tensors that grow."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if len(self.keys) <= layer:
            self.keys.append(key)
            self.values.append(value)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], 2)
            self.values[layer] = torch.cat([self.values[layer], value], 2)
        return self.keys[layer], self.values[layer]

    def __len__(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0


@scripts
def decoding_with_an_own_cache(compiled: Compiled) -> Any:
    """A prompt and then single tokens through attention with a cache object that the step changes."""
    layers = [nn.Linear(8, 24) for _ in range(2)]

    @torch.no_grad()
    def step(x: Tensor, cache: Cache) -> Tensor:
        past = len(cache)
        for index, layer in enumerate(layers):
            B, T, C = x.shape
            query, key, value = [part.view(B, T, 2, 4).transpose(1, 2) for part in layer(x).chunk(3, -1)]
            key, value = cache.update(key, value, index)
            mask = torch.ones(T, key.shape[2], dtype=torch.bool).tril(past)
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            x = x + attended.transpose(1, 2).reshape(B, T, C)
        return x

    step = compiled(step)
    cache = Cache()
    outputs = [step(torch.randn(1, 3, 8), cache)]
    for _ in range(6):
        outputs.append(step(torch.randn(1, 1, 8), cache))
    return outputs, len(cache), cache.keys
