"""The backends that help to find faults, and the broken ones, under their names."""

from __future__ import annotations

import pytest
import torch

import magneto
from magneto._debug import backends
from magneto._install import dynamo


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin()) + torch.nn.functional.relu(x)


def test_they_are_listed() -> None:
    broken = {name for name in backends.BACKENDS if name.endswith("_TESTING_ONLY")}
    assert set(backends.BACKENDS) - broken <= set(magneto.list_backends())
    assert not broken & set(magneto.list_backends())
    assert set(backends.BACKENDS) <= set(dynamo.list_backends(exclude_tags=None))
    with pytest.raises(magneto.exc.InvalidValue, match="Magneto's own"):
        magneto.register_backend(lambda gm, inputs: gm, name="eager_debug")


@pytest.mark.parametrize(
    "name", ["eager_debug", "eager_noexcept", "pre_dispatch_eager", "ts", "aot_ts", "aot_eager_default_partitioner"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("gradients", [False, True])
def test_results_and_gradients_are_eagers(name: str, gradients: bool) -> None:
    x = torch.randn(5, requires_grad=gradients)
    got = magneto.compile(f, backend=name)(x)
    torch.testing.assert_close(got, f(x))
    if gradients:
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(f(x).sum(), x))


def test_a_relu_that_does_not_compile() -> None:
    with pytest.raises(magneto.exc.BackendCompilerFailed) as raised:
        magneto.compile(f, backend="relu_compile_error_TESTING_ONLY")(torch.randn(3))
    assert isinstance(raised.value.inner_exception, backends.ReluCompileError)
    x = torch.randn(3)
    assert torch.equal(magneto.compile(torch.sin, backend="relu_compile_error_TESTING_ONLY")(x), x.sin())


def test_a_relu_that_raises() -> None:
    with pytest.raises(RuntimeError, match="ReluRuntimeError"):
        magneto.compile(f, backend="relu_runtime_error_TESTING_ONLY")(torch.randn(3))


def test_a_relu_that_is_wrong() -> None:
    x = torch.randn(3)
    got = magneto.compile(f, backend="relu_accuracy_error_TESTING_ONLY")(x)
    torch.testing.assert_close(got, x.sin() + 1 + x + 1)


def test_inputs_that_are_no_leaves() -> None:
    compiled = magneto.compile(f, backend="non_leaf_compile_error_TESTING_ONLY")
    x = torch.randn(3, requires_grad=True)
    compiled(x)
    with pytest.raises(magneto.exc.BackendCompilerFailed):
        magneto.compile(f, backend="non_leaf_compile_error_TESTING_ONLY")(x * 2)


def test_errors_name_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def program(x, index):
        return x.sin()[index]

    x, index = torch.randn(3), torch.tensor([7])
    with pytest.raises(IndexError):
        magneto.compile(program, backend="eager_debug", fullgraph=True)(x, index)
    assert "IndexError in " in caplog.text and "return x.sin()[index]" in caplog.text
    with pytest.raises(IndexError):
        magneto.compile(program, backend="eager_noexcept", fullgraph=True)(x, index)
    assert "Unexpected exception when running generated GraphModule: IndexError" in caplog.text
