"""`magneto.install()` leaves eager PyTorch alone: its features work, its modules import, the names that it uses are there.

Everything runs in processes that have imported nothing before. A parent has torch and Magneto and is installed; each
feature runs in a child of its own, forked from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from install import eager_features, training_features

FEATURES = {**eager_features.FEATURES, **training_features.FEATURES}
TESTS = Path(__file__).parents[1]

# Forks for each feature, two at a time; gives {name: traceback, or ""}.
FORKS = """
import json, os, sys, tempfile, traceback
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import magneto
magneto.install()
# What several of them import.
import sympy, torch._decomp, torch._refs, torch.ao.quantization.quantize_fx, torch.distributed.tensor
import torch.fx.experimental.proxy_tensor, torch.fx.experimental.symbolic_shapes
from install import eager_features, training_features
FEATURES = {{**eager_features.FEATURES, **training_features.FEATURES}}

def run(feature, file):
    try:
        feature()
        text = ""
    except BaseException:
        text = traceback.format_exc()
    with open(file, "w") as out:
        out.write(text)
    os._exit(0)

folder, running, errors = tempfile.mkdtemp(), {{}}, {{}}

def wait():
    pid, status = os.wait()
    name = running.pop(pid)
    file = os.path.join(folder, name)
    errors[name] = open(file).read() if status == 0 and os.path.exists(file) else f"the process ended with {{status}}"

for name, feature in FEATURES.items():
    pid = os.fork()
    if pid == 0:
        run(feature, os.path.join(folder, name))
    running[pid] = name
    if len(running) == 2:
        wait()
while running:
    wait()
print(json.dumps(errors))
"""


def run(program: str, timeout: int = 400) -> str:
    process = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-8000:]
    return process.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    return json.loads(run(FORKS.format(tests=str(TESTS))))


@pytest.mark.parametrize("name", FEATURES)
def test_eager_feature(name: str, errors: dict[str, str]) -> None:
    assert not errors[name], errors[name]


# Modules that need what is not installed here, or another machine, may say so: but only that.
SURFACE = """
import importlib, pkgutil, torch, magneto
magneto.install()
failed, count = [], 0

def walk(package, name):
    global count
    for found in pkgutil.iter_modules(getattr(package, "__path__", [])):
        if found.name.startswith("_") or name == "torch.testing" or found.name in ("__main__", "tensorboard"):
            continue
        child = f"{name}.{found.name}"
        count += 1
        try:
            module = importlib.import_module(child)
        except Exception as error:
            missing = isinstance(error, ImportError) and (error.name or "")
            if not missing or missing.startswith(("torch", "functorch", "magneto")):
                failed.append((child, repr(error)[:500]))
            continue
        if found.ispkg:
            walk(module, name=child)

walk(torch, "torch")
assert count > 400, count
assert not failed, failed
print("imported")
"""


def test_the_public_surface_imports() -> None:
    assert run(SURFACE) == "imported"


# Every name of the compiler that stands in PyTorch's own sources, and those of tests/install/library_names.txt: it is
# there, or PyTorch's own module lacks it as well (another platform's, another build's).
NAMES = """
import importlib, sys
sys.path.insert(0, {tests!r})
import torch, magneto
magneto.install()
from install import compiler_names
from magneto._install import peer, table

wanted = compiler_names.of_pytorch() | compiler_names.of_libraries()
assert len(wanted) > 400, len(wanted)
failed = []

def there(module, name):
    if not name:
        return True
    try:
        return hasattr(module, name) or bool(importlib.import_module(f"{{module.__name__}}.{{name}}"))
    except ImportError:
        return False

for module, name in sorted(wanted):
    try:
        served = there(importlib.import_module(module), name)
    except ImportError as error:
        served = False
    if served:
        continue
    try:
        real = there(peer.module(module), name)
    except ImportError:
        continue
    if real:
        failed.append((module, name))
assert not failed, failed
print("all there")
"""


def test_the_names_that_pytorch_and_libraries_use() -> None:
    assert run(NAMES.format(tests=str(TESTS))) == "all there"
