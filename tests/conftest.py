"""Every test runs in strict mode: an internal fallback, or a fake tensor that outlives its capture, fails it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the models have random weights; nothing is downloaded
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A cache on disk of this run's own, in child processes too.
os.environ["MAGNETO_CACHE_DIR"] = tempfile.mkdtemp(prefix="magneto-tests-")
atexit.register(shutil.rmtree, os.environ["MAGNETO_CACHE_DIR"], ignore_errors=True)

import pytest
import torch
from browser import Browser

import magneto

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def strict(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fresh Magneto for each test, checked afterwards. Tests of the fallback itself have `@pytest.mark.lenient`."""
    torch.manual_seed(0)
    magneto.reset()
    if request.node.get_closest_marker("lenient"):
        yield
    else:
        with magneto.config.patch(strict=True):
            yield
        fallbacks = magneto.stats()["fallbacks"]
        assert not fallbacks, f"internal fallbacks: {fallbacks}"
    magneto.reset()


@pytest.fixture
def ours_alone() -> Iterator[None]:
    """torch.cond and its like, called outside of what is compiled, run as written: PyTorch's own would compile them, and
    change PyTorch's optimizers for the rest of the process.
    """
    magneto.install()
    try:
        yield
    finally:
        magneto.uninstall()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Fails, and says what to install, where there is no browser."""
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lenient: provokes an internal fallback: runs without strict mode")
    config.addinivalue_line("markers", "threads: uses threads: runs under ThreadSanitizer too (tools/sanitize.sh)")
