"""Tensors that functions under functools.lru_cache keep: the cache's own, as in eager."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

BACKENDS = ["eager", "aot_eager", "magneto"]


@functools.lru_cache
def triangle(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns).tril()


@functools.lru_cache(maxsize=2)
def angles(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.arange(0, size, 2, device=device) / size
    return steps.cos(), steps.sin()


@functools.lru_cache
def drawn(size: int) -> torch.Tensor:
    return torch.rand(size)


@functools.lru_cache
def noted(size: int) -> torch.Tensor:
    SEEN.append(size)
    return torch.ones(size)


@functools.lru_cache
def of_scale(size: int) -> torch.Tensor:
    return SCALE * size


SEEN: list[int] = []
SCALE = torch.ones(4)


def uses_a_mask(x: torch.Tensor) -> Any:
    return x * triangle(4, 4), triangle(4, 4) is triangle(4, 4)


def uses_angles(x: torch.Tensor) -> Any:
    cosines, sines = angles(8, torch.device("cpu"))
    return x * cosines + sines


def writes_what_is_kept(x: torch.Tensor) -> Any:
    triangle(4, 4).mul_(2)
    return x * triangle(4, 4)


def uses_more_than_is_kept(x: torch.Tensor) -> Any:
    return sum(angles(size, torch.device("cpu"))[0].sum() for size in (2, 4, 6)) * x


def scales_before(x: torch.Tensor) -> Any:
    SCALE.add_(1)
    return x * of_scale(2)


def of_the_rows(x: torch.Tensor) -> Any:
    return x * triangle(x.shape[0], 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "exits"),
    [
        (uses_a_mask, False),
        (uses_angles, False),
        (writes_what_is_kept, False),
        (uses_more_than_is_kept, True),
        (of_the_rows, True),
        (scales_before, True),
        (lambda x: x + drawn(4), True),
        (lambda x: x + noted(4), True),
    ],
)
def test_tensors_that_an_lru_cache_keeps(program: Callable[..., Any], exits: bool, backend: str) -> None:
    caches = triangle, angles, drawn, noted, of_scale

    def clear() -> None:
        for cache in caches:
            cache.cache_clear()

    def run(function: Callable[..., Any]) -> Any:
        clear()
        SEEN.clear()
        SCALE.fill_(1)
        torch.manual_seed(0)
        results = []
        for i, rows in enumerate((4, 4, 2, 4)):
            if i == 3:
                clear()
            try:
                results.append(function(torch.ones(rows, 4)))
            except RuntimeError as error:
                results.append(type(error))
        return results, list(SEEN), SCALE.clone(), torch.rand(1), [cache.cache_info().currsize for cache in caches]

    expected = run(program)
    assert_same(run(magneto.compile(program, backend=backend)), expected)
    assert bool(magneto.stats()["breaks"]) == exits, magneto.stats()["break_reasons"]


LOG = logging.getLogger("tests.lru_caches")


@functools.lru_cache(None)
def logged_once(text: str) -> None:
    LOG.warning(text)


@functools.lru_cache(None)
def logged_and_noted(text: str) -> None:
    LOG.warning("%s noted", text)
    SEEN.append(len(text))


@functools.lru_cache(None)
def logged_and_refused(text: str) -> None:
    LOG.warning(text)
    raise ValueError(text)


def warns_once(x: torch.Tensor) -> Any:
    logged_once("once")
    y = x + 1
    logged_once("once")
    logged_once("twice")
    return y


def warns_behind_a_print(x: torch.Tensor) -> Any:
    SEEN.append(1)
    logged_once("once")
    return x + len(SEEN)


def notes_too(x: torch.Tensor) -> Any:
    logged_and_noted("three")
    return x + len(SEEN)


def is_refused(x: torch.Tensor) -> Any:
    try:
        logged_and_refused("no")
    except ValueError:
        return x - 1
    return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "exits"),
    [(warns_once, False), (warns_behind_a_print, True), (notes_too, True), (is_refused, True)],
)
def test_logs_that_are_written_once(
    program: Callable[..., Any], exits: bool, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    def run(function: Callable[..., Any]) -> Any:
        caplog.clear()
        SEEN.clear()
        results = []
        for i in range(4):
            if i in (0, 3):
                for cache in (logged_once, logged_and_noted, logged_and_refused):
                    cache.cache_clear()
            results.append((function(torch.ones(2)), list(SEEN), list(caplog.messages)))
        return results

    expected = run(program)
    assert_same(run(magneto.compile(program, backend=backend)), expected)
    assert bool(magneto.stats()["breaks"]) == exits, magneto.stats()["break_reasons"]
