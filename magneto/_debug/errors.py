"""How far the values of a wrong result are off: counts by powers of ten, small enough for a log."""

from __future__ import annotations

from typing import Any

import torch

_LEAST, _MOST = -40, 40  # powers of ten that are told apart

Cells = list[list[int]]


def distribution(
    want: torch.Tensor, got: torch.Tensor, exact: torch.Tensor | None, allowed: float = 0.0
) -> dict[str, Any]:
    """`exact`: float64's result, where it is known; else eager's, `want`, counts as exact.

    "compiled" and "eager" are [magnitude, error, count] of the values that are off: the value and its error lie between
    those powers of ten and the next ones. "exact" counts values without an error (compiled, eager), "odd" those that
    are finite on one side only; "first" is the first value that is further off than is allowed: index, compiled, eager.
    """
    want, got = _numbers(want), _numbers(got)
    truth = _numbers(exact) if exact is not None else want
    if truth.shape != want.shape:
        truth = want
    usable = want.isfinite() & got.isfinite() & truth.isfinite()
    error, noise = (got - truth).abs(), (want - truth).abs()
    odd = (want != got) & ~(want.isnan() & got.isnan()) & ~usable
    beyond = (odd | (usable & (error > allowed))).nonzero()
    first = None
    if len(beyond):
        at = tuple(beyond[0].tolist())
        first = [list(at), f"{got[at].item():.6g}", f"{want[at].item():.6g}"]
    truth, error, noise = truth[usable], error[usable], noise[usable]
    return {
        "values": want.numel(),
        "odd": int(odd.sum()),
        "exact": [int((error == 0).sum()), int((noise == 0).sum())],
        "compiled": _cells(truth, error),
        "eager": _cells(truth, noise),
        "allowed": allowed,
        "first": first,
    }


def _numbers(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    if x.layout != torch.strided or x.is_quantized:
        x = x.to_dense() if not x.is_quantized else x.dequantize()
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()


def _cells(truth: torch.Tensor, error: torch.Tensor) -> Cells:
    off = error > 0
    if not bool(off.any()):
        return []
    span = _MOST - _LEAST + 1
    keys = _powers(truth[off].abs()) * span + _powers(error[off])
    places, counts = torch.unique(keys, return_counts=True)
    return [
        [key // span + _LEAST, key % span + _LEAST, count]
        for key, count in zip(places.tolist(), counts.tolist(), strict=True)
    ]


def _powers(x: torch.Tensor) -> torch.Tensor:
    """Powers of ten, counted from the least; zero is the least."""
    return x.log10().floor().clamp(_LEAST, _MOST).long() - _LEAST
