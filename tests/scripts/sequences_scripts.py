"""Sequences and signals: recurrent layers, packed batches, transforms, windows, positions."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

scripts = Scripts()


@scripts
def packed_lstm(compiled: Compiled) -> Any:
    """Sequences of several lengths, packed and padded again around an LSTM in both directions."""
    embedding = nn.Embedding(20, 8)
    lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
    head = nn.Linear(32, 3)

    def classify(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(embedding(x), lengths, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = lstm(packed)
        output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        return head(output.mean(1)), hidden

    classify = compiled(classify)
    return [classify(torch.randint(0, 20, (3, 7)), torch.tensor(lengths)) for lengths in ([7, 3, 2], [4, 7, 1])]


@scripts
def truncated_backpropagation(compiled: Compiled) -> Any:
    """The state of an LSTM with dropout goes from call to call, detached."""
    lstm = nn.LSTM(3, 5, 2, dropout=0.2)
    lstm.train()

    def step(x: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, state = lstm(x, state)
        return output.tanh(), tuple(part.detach() for part in state)

    step = compiled(step)
    first, state = step(torch.randn(4, 2, 3))
    second, state = step(torch.randn(4, 2, 3), state)
    return first.detach(), second.detach(), state


@scripts
def teacher_forcing(compiled: Compiled) -> Any:
    """Encoder and decoder; Python's random numbers say whether the decoder sees the right token or its own."""
    embedding = nn.Embedding(9, 8)
    encoder = nn.GRU(8, 8, batch_first=True)
    cell = nn.GRUCell(8, 8)
    head = nn.Linear(8, 9)

    def translate(source: Tensor, target: Tensor, probability: float) -> Tensor:
        _, hidden = encoder(embedding(source))
        hidden = hidden[0]
        token = target[:, 0]
        outputs = []
        for t in range(1, target.size(1)):
            hidden = cell(embedding(token), hidden)
            logits = head(hidden)
            outputs.append(logits)
            token = target[:, t] if random.random() < probability else logits.argmax(-1)
        return torch.stack(outputs, 1)

    translate = compiled(translate)
    with torch.no_grad():
        return [translate(torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 6)), 0.5) for _ in range(2)]


@scripts
def forward_algorithm(compiled: Compiled) -> Any:
    """The partition function of a conditional random field, for three lengths."""

    def log_partition(emissions: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
        alpha = emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            following = torch.logsumexp(alpha.unsqueeze(2) + transitions + emissions[:, t].unsqueeze(1), 1)
            alpha = torch.where(mask[:, t].unsqueeze(1), following, alpha)
        return alpha.logsumexp(1)

    log_partition = compiled(log_partition)
    results = []
    for length in (5, 6, 7):
        mask = torch.ones(2, length, dtype=torch.bool)
        results.append(log_partition(torch.randn(2, length, 3), torch.randn(3, 3), mask))
    return results


@scripts
def spectrogram_and_back(compiled: Compiled) -> Any:
    """Magnitude and phase of a short-time Fourier transform, and the signal from them."""

    def analyse(signal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        window = torch.hann_window(16)
        spectrum = torch.stft(signal, 16, 4, window=window, return_complex=True)
        magnitude = spectrum.abs().clamp_min(1e-5).log()
        phase = torch.angle(spectrum)
        rebuilt = torch.istft(torch.polar(magnitude.exp(), phase), 16, 4, window=window)
        return magnitude, rebuilt, torch.view_as_real(spectrum)

    return compiled(analyse)(torch.sin(torch.arange(128.0)).view(1, -1))


@scripts
def windows_of_a_series(compiled: Compiled) -> Any:
    """Means over windows in two ways and a resampled series, for three lengths."""

    def features(x: Tensor, window: int, stride: int) -> tuple[Tensor, Tensor, Tensor]:
        means = x.unfold(-1, window, stride).mean(-1)
        pooled = F.avg_pool1d(x.unsqueeze(1), window, stride).squeeze(1)
        doubled = F.interpolate(x.unsqueeze(1), scale_factor=2, mode="linear").squeeze(1)
        return means, pooled, doubled

    features = compiled(features)
    return [features(torch.randn(2, length), 4, 2) for length in (16, 18, 20)]


@scripts
def rotary_positions_as_complex_numbers(compiled: Compiled) -> Any:
    def rotate(query: Tensor, rotations: Tensor) -> Tensor:
        pairs = query.float().reshape(*query.shape[:-1], -1, 2)
        return torch.view_as_real(torch.view_as_complex(pairs) * rotations).flatten(3)

    angles = torch.outer(torch.arange(5.0), 1 / 10 ** torch.arange(4.0))
    return compiled(rotate)(torch.ones(1, 2, 5, 8), torch.polar(torch.ones(5, 4), angles))


@scripts
def attention_with_a_chosen_kernel(compiled: Compiled) -> Any:
    def attend(x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x)

    return compiled(attend)(torch.randn(1, 2, 16, 8))
