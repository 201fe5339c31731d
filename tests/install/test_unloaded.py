"""PyTorch's compiler stays unloaded while transformers runs under `magneto.install()`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch, magneto
magneto.install()
sys.path.insert(0, {tests!r})
import models

bert, given = models.build("bert"), models.inputs("bert")
compiled = torch.compile(bert, fullgraph=True)
with torch.no_grad():
    want = bert(**given).last_hidden_state
    for _ in range(2):
        assert torch.allclose(compiled(**given).last_hidden_state, want, atol=1e-5)
assert magneto.stats()["graphs"] == 1, magneto.stats()

PROPER = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
from magneto._install import peer
served = {{name: module for name, module in sys.modules.items() if name.startswith(PROPER)}}
assert "torch._dynamo" in served  # transformers imports it
for name, module in served.items():
    assert type(module).__module__.startswith("magneto._install"), name
    assert peer.loaded(name) is None, name
magneto.uninstall()
left = [name for name in sys.modules if name.startswith(PROPER)]
assert not left, left
print("unloaded")
"""


def test_transformers() -> None:
    tests = str(Path(__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(tests=tests)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert process.returncode == 0 and process.stdout.endswith("unloaded\n"), process.stdout + process.stderr
