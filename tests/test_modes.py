"""`mode=` and `options=`: what they accept, and that whatever measuring chooses gives eager's results."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto
from magneto import _test_settings, exc

X, W, B = torch.randn(48, 40), torch.randn(40, 40), torch.randn(40)


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.gelu(torch.addmm(b, x, w))
    z = F.layer_norm(y + x, (40,), b, b)
    return torch.softmax(z, -1), z.sum(0), z.t().contiguous() + 1, x[:, :1].cumsum(0)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with magneto.config.patch(disk_cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def check(**arguments: Any) -> dict[str, Any]:
    magneto.reset()
    compiled = magneto.compile(block, fullgraph=True, **arguments)
    with torch.no_grad():
        for rows in (48, 31) if arguments.get("dynamic") else (48, 48):
            for ours, eager in zip(compiled(X[:rows], W, B), block(X[:rows], W, B), strict=True):
                assert ours.stride() == eager.stride()
                torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert magneto.stats()["recompiles"] == 0
    return magneto.stats()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_give_eagers_results(cache: Path, mode: str) -> None:
    with magneto.config.patch(max_autotune_seconds=5):
        stats = check(mode=mode)
    assert stats["kernels"] and stats["uncompiled"] == {}


# As scheduled, other lanes, one register, twice as many, eager's kernels; of products: by rule, none, more, all.
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("alternative", range(5))
def test_every_alternative_gives_eagers_results(cache: Path, alternative: int, dynamic: bool) -> None:
    with _test_settings.patch(max_autotune_takes=alternative):
        stats = check(mode="max-autotune", dynamic=dynamic)
        assert (stats["tuned"] > 0) == (alternative > 0) and stats["cached_programs"] == 0
        if alternative == 4:  # all that an operator can do is called
            assert stats["kernels"] == 0 and sum(stats["externs"].values()) >= 6
        # The choice is remembered.
        again = check(mode="max-autotune", dynamic=dynamic)
        assert again["cached_programs"] == 1 and again["tuned"] == 0 and again["kernels"] == stats["kernels"]
        assert again["externs"] == stats["externs"]
        assert check(dynamic=dynamic)["cached_programs"] == 0


def test_measuring_leaves_inputs_and_random_numbers_alone(cache: Path) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return F.dropout(x, 0.5) @ w

    x = torch.randn(4, 4)
    ours, theirs = x.clone(), x.clone()
    torch.manual_seed(3)
    expected, after = function(theirs, x), torch.rand(3)
    torch.manual_seed(3)
    compiled = magneto.compile(function, mode="max-autotune")
    assert torch.allclose(compiled(ours, x), expected) and torch.equal(torch.rand(3), after)
    assert torch.equal(ours, theirs) and ours._version == theirs._version


def test_an_operator_that_raises_while_it_is_measured(cache: Path) -> None:
    compiled = magneto.compile(lambda x, i: (x.exp() @ x)[i], mode="max-autotune")
    with pytest.raises(IndexError):
        compiled(W, torch.tensor([1000]))
    exact = (W.double().exp() @ W.double())[[3]]
    rounding = 1e-6 * (W.double().exp() @ W.double().abs())[[3]]  # whichever way won adds in an order of its own
    assert ((compiled(W, torch.tensor([3])) - exact).abs() <= rounding).all()


@pytest.mark.parametrize("deterministic", ["option", "setting", "torch"])
def test_deterministic_measures_nothing(cache: Path, deterministic: str) -> None:
    options = {"max_autotune": True, "deterministic": deterministic == "option"}
    torch.use_deterministic_algorithms(deterministic == "torch")
    try:
        with _test_settings.patch(max_autotune_takes=4), magneto.config.patch(deterministic=deterministic == "setting"):
            stats = check(options={} if deterministic == "setting" else options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert stats["tuned"] == 0 and stats["kernels"] > 0


def test_sums_are_the_same_on_any_number_of_threads() -> None:
    x = torch.randn(1 << 20)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        magneto.reset()
        results.append(magneto.compile(lambda x: ((x * 2).sum(), x.view(1024, -1).sin().sum(0)))(x))
    torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_each_option_takes_effect(cache: Path, tmp_path: Path) -> None:
    with magneto.config.patch(debug_dir=str(tmp_path)):
        check(options={"trace.enabled": True})
        check(options={"debug_dump": True})
    assert len(list(tmp_path.glob("torch_compile_debug/*/magneto/*"))) == 2
    before = sorted(cache.rglob("*"))
    with torch.no_grad():
        magneto.compile(lambda x: x * 3 + 1, options={"force_disable_caches": True})(X)
        magneto.compile(lambda x: x * 4 + 1, options={"disk_cache": False})(X)
    assert sorted(cache.rglob("*")) == before
    check(options={"fallback_random": True, "triton.cudagraphs": True, "max_autotune_seconds": 3})


def test_all_are_documented() -> None:
    assert set(magneto.list_modes()) >= {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    assert all(magneto.list_modes().values()) and all(magneto.list_options().values())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"mode": "max-autotuned"}, exc.InvalidMode, "Did you mean 'max-autotune'"),
        ({"options": {"max_autotun": True}}, exc.InvalidOption, "Did you mean 'max_autotune'"),
        ({"options": {"trace.enable": True}}, exc.InvalidOption, "Did you mean 'trace.enabled'"),
        ({"options": {"max_autotune": "yes"}}, exc.InvalidValue, "takes bool"),
        ({"options": {"fallback_random": 3}}, exc.InvalidValue, "takes bool"),
        ({"options": {"max_autotune_seconds": 0}}, exc.InvalidValue, "at least 1"),
    ],
)
def test_what_is_not_accepted(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        magneto.compile(block, **arguments)


PROGRAM = """
import torch, magneto
torch.set_num_threads(1)
magneto.config.progress_seconds = 0
x = torch.randn(64, 64)
magneto.compile(lambda x: torch.softmax(x @ x, -1), mode="max-autotune")(x)
print(magneto.stats()["cached_programs"])
"""


def test_log_and_progress(tmp_path: Path) -> None:
    """TORCH_LOGS=autotuning has a line per kernel; a terminal sees how far it is; the next process measures nothing."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    environment = {**clean, "MAGNETO_CACHE_DIR": str(tmp_path / "cache"), "TORCH_LOGS": "autotuning"}
    kept, texts = [], []
    for _ in range(2):
        terminal, other = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM], stdout=subprocess.PIPE, stderr=other, env=environment
        )
        os.close(other)
        text = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            text += part
        os.close(terminal)
        kept.append(process.communicate(timeout=120)[0].decode().split()[-1])
        assert process.returncode == 0, text
        texts.append(text.decode())
    assert kept == ["0", "1"]
    assert "magneto: <lambda> (" in texts[0] and "kernel _softmax:" in texts[0] and "as scheduled" in texts[0]
    assert "measured [" not in texts[1] and "from the cache on disk" in texts[1]
