"""Libraries under `magneto.install()`: models are saved, loaded and run as without it, and what is compiled is Magneto's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Of each kind, the much used ones first.
MODELS = "bert gpt2 llama qwen3 mistral mixtral t5 bart vit clip whisper wav2vec2 dinov2".split()

PROGRAM = """
import json, os, sys, tempfile, traceback
import torch
torch.set_num_threads(1)
import magneto
magneto.install()
sys.path.insert(0, {tests!r})
import models

def plain(result):
    return [value for value in result.to_tuple() if isinstance(value, torch.Tensor)] if hasattr(result, "to_tuple") else [result]

errors = {{}}
for name in {names!r}:
    try:
        model, given = models.build(name), models.inputs(name)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            want = plain(model(**given))
            model.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder).eval()
            lean = type(model).from_pretrained(folder, dtype=torch.bfloat16, low_cpu_mem_usage=True)
            got = plain(loaded(**given))
        assert len(got) == len(want) and all(map(torch.equal, got, want))
        assert next(lean.parameters()).dtype == torch.bfloat16
        errors[name] = ""
    except BaseException:
        errors[name] = traceback.format_exc()
print(json.dumps(errors))
"""


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    process = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM.format(tests=str(TESTS), names=MODELS)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_from_pretrained(name: str, errors: dict[str, str]) -> None:
    assert not errors[name], errors[name]
