"""Where PyTorch's own compiler was used in the process, without `install`: what it keeps of PyTorch is ours all the same."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch, magneto
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
assert hasattr(torch.optim.Adam._init_group, "_torchdynamo_orig_callable")
for kind in (torch.optim.SGD, torch.optim.AdamW):
    for how in ({}, {"foreach": True}, {"fused": True}):
        model = torch.nn.Linear(3, 3)
        optimizer = kind(model.parameters(), lr=0.1, **how)

        @magneto.compile
        def step(x):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        for _ in range(3):
            step(torch.ones(2, 3))
assert magneto.stats()["breaks"] == 0, magneto.stats()["break_reasons"]
if INSTALLED:
    magneto.install()
    step = torch.compile(step.__wrapped__)
    for _ in range(3):
        step(torch.ones(2, 3))
    assert magneto.stats()["breaks"] == 0, magneto.stats()["break_reasons"]
disabled = torch._dynamo.disable(lambda x: x + 1)
assert magneto.compile(lambda x: disabled(x) * 2)(torch.ones(2)).tolist() == [4, 4]
assert [reason.split(":")[0] for reason in magneto.stats()["break_reasons"]] == ["DisabledFunction"]
"""


@pytest.mark.parametrize("installed", [False, True])
def test_optimizers_are_captured_and_disabled_functions_are_not(installed: bool) -> None:
    program = f"INSTALLED = {installed}\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
