"""The names that documents have for these tools: settings, variables of the environment, functions, backends. Each does
what it says in a process of its own or under its setting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fresh
import pytest
import torch

import magneto

# Setting of torch._dynamo.config -> another value than the default.
SETTINGS: dict[str, object] = {
    "repro_after": "aot",
    "repro_level": 3,
    "repro_forward_only": True,
    "repro_tolerance": 0.5,
    "repro_ignore_non_fp": True,
    "same_two_models_use_fp64": False,
    "replay_record_enabled": True,
    "debug_dir_root": "somewhere",
    "base_dir": "somewhere",
    "error_on_nested_fx_trace": False,
}
OWN_NAME = {"debug_dir_root": "debug_dir", "base_dir": "debug_dir", "error_on_nested_fx_trace": None}
VARIABLES = {
    "TORCHDYNAMO_REPRO_AFTER": ("aot", "repro_after", "aot"),
    "TORCHDYNAMO_REPRO_LEVEL": ("4", "repro_level", 4),
    "TORCHDYNAMO_REPRO_FORWARD_ONLY": ("1", "repro_forward_only", True),
    "TORCHDYNAMO_REPRO_IGNORE_NON_FP": ("1", "repro_ignore_non_fp", True),
    "TORCH_COMPILE_REPLAY_RECORD": ("1", "replay_record_enabled", True),
}
FUNCTIONS = {
    "torch._dynamo.debug_utils": (
        "run_fwd_maybe_bwd same_two_models backend_accuracy_fails cast_to_fp64 generate_env_vars_string"
    ),
    "torch._dynamo": "replay",
    "functorch.compile": "minifier",
    "torch._dynamo.repro.after_aot": "run_repro",
    "torch._dynamo.repro.after_dynamo": "run_repro",
}


@pytest.fixture
def installed() -> Iterator[None]:
    magneto.install()
    yield
    magneto.uninstall()


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(installed: None, name: str) -> None:
    settings, value = torch._dynamo.config, SETTINGS[name]
    default = getattr(settings, name)
    assert default != value
    own = OWN_NAME.get(name, name)
    with settings.patch({name: value}):
        assert getattr(settings, name) == value
        assert own is None or getattr(magneto.config, own) == value
    assert getattr(settings, name) == default


def run_in_fresh_process(code: str, variables: dict[str, str] | None = None) -> None:
    environment = {**os.environ, **(variables or {}), "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    fresh.python("-c", code, env=environment, check=True, timeout=100)


FX_TRACING = """
import magneto, torch
magneto.install()
inner = torch.compile(lambda x: x.sin() + 1)

class Outer(torch.nn.Module):
    def forward(self, x):
        return inner(x) * 2

x = torch.randn(3)
try:
    torch.fx.symbolic_trace(Outer())
except magneto.exc.NestedFxTrace as error:
    assert "error_on_nested_fx_trace" in str(error)
else:
    raise AssertionError("traced")
torch.testing.assert_close(inner(x), x.sin() + 1)  # not traced: as ever
with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
    traced = torch.fx.symbolic_trace(Outer())
assert "sin" in traced.code
torch.testing.assert_close(traced(x), (x.sin() + 1) * 2)
magneto.uninstall()
assert "sin" in torch.fx.symbolic_trace(Outer()).code
"""


def test_fx_tracing_of_compiled_code() -> None:
    run_in_fresh_process(FX_TRACING)


def test_variables() -> None:
    code = "import magneto\n" + "".join(
        f"assert magneto.config.{name} == {value!r}, {name!r}\n" for _, name, value in VARIABLES.values()
    )
    run_in_fresh_process(code, {key: text for key, (text, _, _) in VARIABLES.items()})


@pytest.mark.parametrize("module", FUNCTIONS)
def test_functions(installed: None, module: str) -> None:
    import importlib

    found = importlib.import_module(module)
    for name in FUNCTIONS[module].split():
        function = getattr(found, name)
        assert callable(function) and function.__module__.startswith("magneto"), f"{module}.{name}"


def test_variables_of_a_script() -> None:
    from magneto._debug import names

    with magneto.config.patch(repro_after="aot"):
        assert isinstance(names.generate_env_vars_string(), str)


# What a backend does wrong, the variables and settings that leave it out, each under TORCHDYNAMO_REPRO_LEVEL=4.
MEANINGS = {
    "a wrong gradient": ("wrong_gradient", {"repro_forward_only": True}),
    "a wrong integer": ("wrong_integer", {"repro_ignore_non_fp": True}),
    "off by a little": ("off", {"repro_tolerance": 0.01}),
    "off by a little, without float64": ("off", {"same_two_models_use_fp64": False}),
}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def wrong_gradient(gm, inputs):
    return lambda *args: [Doubled.apply(x) if x.requires_grad else x for x in gm.forward(*args)]


def wrong_integer(gm, inputs):
    return lambda *args: [x if x.is_floating_point() else x + 1 for x in gm.forward(*args)]


def off(gm, inputs):
    return lambda *args: [x * (1 + 1e-4) if x.is_floating_point() else x for x in gm.forward(*args)]


def of_all_kinds(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sin(x) * 2, torch.argmax(x)


@pytest.mark.parametrize("name", MEANINGS)
def test_settings_leave_out_what_they_say(installed: None, name: str, tmp_path: Path) -> None:
    backend, settings = MEANINGS[name]
    x = torch.randn(8, requires_grad=True)
    with torch._dynamo.config.patch(repro_after="dynamo", repro_level=4, base_dir=str(tmp_path)):
        with pytest.raises(magneto.exc.AccuracyError):
            torch.compile(of_all_kinds, backend=globals()[backend])(x)
        magneto.reset()
        with torch._dynamo.config.patch(settings):
            torch.compile(of_all_kinds, backend=globals()[backend])(x)


def test_results_of_forward_and_backward(installed: None) -> None:
    """The result, then what a backward leaves, as the peer's function gives them."""
    from torch._dynamo.debug_utils import run_fwd_maybe_bwd

    model, x = torch.nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
    got = run_fwd_maybe_bwd(model, [x])
    assert len(got) == 6 and got[1] is None and x.grad is None
    torch.testing.assert_close(got[0], model(x))
    assert set(got[2]) == {"weight.grad", "bias.grad"} and set(got[3]) == {"weight", "bias"}
    assert set(got[4]) == {"running_mean", "running_var", "num_batches_tracked"}
    torch.testing.assert_close(got[2]["bias.grad"], torch.full((3,), 4.0))
    assert got[5].shape == x.shape
    assert isinstance(run_fwd_maybe_bwd(model, [x], only_fwd=True), torch.Tensor)
    assert len(run_fwd_maybe_bwd(torch.sin, [x])) == 6


# -- the command lines of the documents, on their programs


def document(folder: Path, name: str, variables: dict[str, str]) -> str:
    """A document's program under `python -m magneto run`; what is said."""
    from install.snippets import SNIPPETS

    (folder / "playground.py").write_text(SNIPPETS[name].program())
    environment = {**os.environ, **variables, "PYTHONPATH": str(Path(magneto.__file__).parents[1])}
    done = fresh.python("-m", "magneto", "run", "playground.py", env=environment, cwd=folder)
    return done.stdout + done.stderr


def test_the_guide_s_toy_compiler_is_minified(tmp_path: Path) -> None:
    """TORCHDYNAMO_REPRO_AFTER="dynamo": the log's lines, and the `forward` that the guide shows."""
    said = document(tmp_path, "guide-toy-compiler", {"TORCHDYNAMO_REPRO_AFTER": "dynamo"})
    for line in (
        "Creating script to minify the error",
        "Writing minified repro to:",
        "Copying repro file for convenience",
    ):
        assert line in said, said
    script = (tmp_path / "repro.py").read_text()
    assert "    def forward(self, z):\n        a = torch.relu(z);  z = None\n        return (a,)\n" in script
    assert len(list(tmp_path.glob("torchdynamo_debug/run_*/minifier/minifier_launcher.py"))) == 1


@pytest.mark.parametrize("level", ["2", "4"])
def test_the_guide_s_lowering_error_is_none_here(level: str, tmp_path: Path) -> None:
    """TORCHDYNAMO_REPRO_AFTER="aot": `_foobar` is called, so nothing fails, and nothing is written."""
    variables = {"TORCHDYNAMO_REPRO_AFTER": "aot", "TORCHDYNAMO_REPRO_LEVEL": level}
    said = document(tmp_path, "guide-backend-error", variables)
    assert "Creating script" not in said and not (tmp_path / "torchdynamo_debug").exists()
