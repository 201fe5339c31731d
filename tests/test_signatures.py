"""The arguments and functions that torch.compiler has, under Magneto's names: each has its effect, or is an error."""

from __future__ import annotations

import operator
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import magneto
from magneto import exc

X = torch.linspace(-1, 1, 32).view(8, 4)


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + 1


def captures() -> int:
    return magneto.stats()["cache_entries"]


def call_with_rows(compiled: Callable[..., Any], *counts: int) -> None:
    for rows in counts:
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))


# -- compile ---------------------------------------------------------------------------------------------------------


def test_a_name_is_what_profiles_and_dumps_call_it(tmp_path: Path) -> None:
    compiled = magneto.compile(program, name="decoder")
    assert repr(compiled).startswith("<compiled decoder: <function program")
    with magneto.config.patch(debug_dump=True, debug_dir=str(tmp_path)), torch.profiler.profile() as profile:
        compiled(X)
    regions = [event.key for event in profile.key_averages() if event.key.startswith("Torch-Compiled Region")]
    assert regions == ["Torch-Compiled Region: 0/0 (decoder)"]
    (folder,) = tmp_path.glob("*/*/magneto/*")
    assert folder.name.partition("_")[2] == "decoder"
    assert repr(pickle.loads(pickle.dumps(magneto.compile(operator.neg, name="minus")))).startswith("<compiled minus")


def test_isolated_callables_share_no_captures() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    for isolated, expected in ((False, 1), (True, 2)):
        magneto.reset()
        compiled = [magneto.compile(layer, isolate_recompiles=isolated) for layer in (Layer(), Layer())]
        assert all(torch.equal(one(X), X * 2) for one in compiled)
        assert captures() == expected


@pytest.mark.parametrize(
    "arguments",
    [{"name": 3}, {"isolate_recompiles": 1}, {"shapes_spec": 3}, {"shapes_spec": {"x": []}, "dynamic": True}],
)
def test_wrong_arguments_of_compile(arguments: dict[str, Any]) -> None:
    with pytest.raises(exc.InvalidValue):
        magneto.compile(program, **arguments)


def test_declared_sizes() -> None:
    compiled = magneto.compile(program, shapes_spec={"x": [(2, 16), 4]})
    call_with_rows(compiled, 8, 9, 2, 16)
    assert captures() == 1
    for wrong, message in (
        (torch.ones(17, 4), r"x.size\(\)\[0\] is 17, and at most 16"),
        (torch.ones(1, 4), r"x.size\(\)\[0\] is 1, and at least 2"),
        (torch.ones(8, 5), r"x.size\(\)\[1\] is 5, and 4 is declared"),
        (torch.ones(8), "x has 1 dimensions, and 2 are declared"),
        (2, "x is no tensor, but int"),
    ):
        with pytest.raises(exc.ConstraintViolation, match=message):
            compiled(wrong)
    assert not vars(X), "marks stay on the program's tensors"


def test_declared_sizes_of_modules_and_keywords() -> None:
    compiled = magneto.compile(torch.nn.Linear(4, 2), shapes_spec={"input": [(None, None), None]})
    with torch.no_grad():
        for rows in (8, 9, 10):
            compiled(torch.randn(rows, 4))
            compiled(input=torch.randn(rows, 4))
    assert captures() == 2  # of a position, and of a keyword
    with pytest.raises(exc.InvalidName, match="'inputs'.*Did you mean 'input'"):
        magneto.compile(torch.nn.Linear(4, 2), shapes_spec={"inputs": [None]})


def test_what_is_not_declared_is_part_of_the_program() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()

    compiled = magneto.compile(both, shapes_spec={"x": [(None, None), None]})
    for rows in (3, 4, 5):
        compiled(torch.ones(rows, 4), X)
    assert captures() == 1
    for rows in (3, 4, 5):
        compiled(X, torch.ones(rows, 4))
    assert captures() == 4


def test_sizes_of_torchs_specification() -> None:
    spec = pytest.importorskip("torch.fx.experimental.dynamic_spec", reason="PyTorch before 2.13 has none")
    rows = spec.ShapeVar("rows", min=2)
    tensor = spec.TensorSpec([rows, spec.STATIC])
    compiled = magneto.compile(lambda x, y: x + y, shapes_spec=spec.ParamsSpec({"x": tensor, "y": tensor}))
    for count in (3, 4, 5):
        compiled(torch.ones(count, 4), torch.ones(count, 4))
    assert captures() == 1
    with pytest.raises(exc.ConstraintViolation, match="another dimension of rows is 3"):
        compiled(torch.ones(3, 1), torch.ones(2, 1))
    for other in (
        {"x": spec.TensorSpec([rows * 2, None])},
        {"x": spec.IntVar("n")},
        {"x": 3},
        {"*args": [tensor]},
        spec.ShapesSpec({"x": tensor}, assumptions=[rows > 3]),
        spec.ParamsSpec({"*args": [tensor]}),
    ):
        with pytest.raises(exc.InvalidValue, match="does not take"):
            magneto.compile(program, shapes_spec=other)


# -- disable, graph_break --------------------------------------------------------------------------------------------


def test_reasons_are_in_the_messages() -> None:
    @magneto.disable(reason="reads a file")
    def read(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def breaking(x: torch.Tensor) -> torch.Tensor:
        y = read(x.sin())
        magneto.graph_break("here it ends")
        magneto.graph_break()
        return y.cos()

    torch.testing.assert_close(magneto.compile(breaking)(X), (X.sin() + 1).cos())
    assert {reason.rpartition("DisabledFunction: call of ")[2] for reason in magneto.stats()["break_reasons"]} == {
        f"{__name__}.{read.__qualname__} (reads a file)",
        "magneto.graph_break (here it ends)",
        "magneto.graph_break",
    }
    with pytest.raises(exc.Unsupported, match=r"\(reads a file\)"):
        magneto.compile(breaking, fullgraph=True)(X)
    assert magneto.graph_break("outside") is None
    with pytest.raises(exc.InvalidValue, match="reason"), magneto.disable(reason="a block"):
        pass
    with pytest.raises(exc.InvalidValue, match="reason"):
        magneto.disable(program, reason=3)


# -- set_stance ------------------------------------------------------------------------------------------------------


def test_the_first_call_is_eager() -> None:
    seen: list[bool] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        seen.append(magneto.is_compiling())
        return program(x)

    with magneto.set_stance("eager_then_compile"):
        compiled = magneto.compile(noting)
        call_with_rows(compiled, 8)
        assert (captures(), seen) == (0, [False])
        call_with_rows(compiled, 9, 10, 11)
        assert captures() == 1, "what the first call had is another size"
        assert seen == [False, True, True, True]


def test_the_first_call_runs_operator_by_operator() -> None:
    with magneto.set_stance("aot_eager_then_compile"):
        compiled = magneto.compile(program)
        call_with_rows(compiled, 8)
        assert (captures(), magneto.stats()["kernels"]) == (1, 0)
        call_with_rows(compiled, 9, 10, 11)
        assert (captures(), magneto.stats()["kernels"]) == (2, 1)
        magneto.reset()
        call_with_rows(compiled, 8)
        assert magneto.stats()["kernels"] == 0


def test_guards_are_checked_whatever_is_asked_for() -> None:
    compiled = magneto.compile(program)
    call_with_rows(compiled, 8)
    with pytest.warns(UserWarning, match="guards are always checked") as caught:
        with magneto.set_stance("default", skip_guard_eval_unsafe=True):
            call_with_rows(compiled, 9)
    assert caught[0].filename == __file__
    with pytest.raises(exc.InvalidValue):
        magneto.set_stance(skip_guard_eval_unsafe=1)  # type: ignore[arg-type]


# -- artifacts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[str], Any]:
    """`magneto.config.patch` of another cache on disk."""
    return lambda name: magneto.config.patch(disk_cache_dir=str(tmp_path / name))


def compile_one() -> None:
    magneto.reset()
    with torch.no_grad():
        magneto.compile(lambda x: torch.softmax(x * 3.25, -1))(X)


def test_artifacts_are_found_in_another_cache(folders: Callable[[str], Any]) -> None:
    with folders("one"):
        compile_one()
        data, info = magneto.save_cache_artifacts() or pytest.fail("nothing was saved")
    with folders("two"):
        loaded = magneto.load_cache_artifacts(data)
        assert loaded is not None and loaded.artifacts == info.artifacts and len(info.artifacts["magneto"]) >= 2
        compile_one()
        assert magneto.stats()["cached_programs"] == 1 and magneto.stats()["cache_misses"] == 0


@pytest.mark.parametrize("broken", ["cut", "changed", "foreign"])
def test_bad_artifacts_are_refused(folders: Callable[[str], Any], broken: str) -> None:
    with folders("one"):
        compile_one()
        data, _ = magneto.save_cache_artifacts() or pytest.fail("nothing was saved")
    bad = {"cut": data[:-1], "changed": data[:-1] + bytes([data[-1] ^ 1]), "foreign": b"something else"}[broken]
    with folders("two"), pytest.warns(RuntimeWarning, match="not loaded"):
        assert magneto.load_cache_artifacts(bad) is None


def test_artifacts_of_a_keyed_cache_need_the_key(folders: Callable[[str], Any], tmp_path: Path) -> None:
    for name in ("key", "other"):
        (tmp_path / name).write_text(name * 8)
        (tmp_path / name).chmod(0o600)
    with folders("one"), magneto.config.patch(disk_cache_key_file=str(tmp_path / "key")):
        compile_one()
        data, _ = magneto.save_cache_artifacts() or pytest.fail("nothing was saved")
    for key, fits in (("key", True), ("other", False), ("", False)):
        path = str(tmp_path / key) if key else ""
        with folders("two" + key), magneto.config.patch(disk_cache_key_file=path), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert (magneto.load_cache_artifacts(data) is not None) == fits


def test_without_a_cache_there_are_no_artifacts(folders: Callable[[str], Any]) -> None:
    with folders("empty"):
        assert magneto.save_cache_artifacts() is None
    with magneto.config.patch(disk_cache=False):
        with pytest.raises(exc.MagnetoError, match="disk_cache"):
            magneto.save_cache_artifacts()
        with pytest.raises(exc.MagnetoError, match="disk_cache"):
            magneto.load_cache_artifacts(b"")
    with pytest.raises(exc.InvalidValue):
        magneto.load_cache_artifacts("text")  # type: ignore[arg-type]


# -- substitute_in_graph, names --------------------------------------------------------------------------------------


def test_a_substitute_is_captured() -> None:
    class Table:
        find = staticmethod(operator.countOf)

    @magneto.substitute_in_graph(operator.countOf)
    def count_of(a: Any, b: Any, /) -> int:
        total = 0
        for item in a:
            total += item is b or item == b
        return total

    compiled = magneto.compile(lambda x: x * Table.find([1, 2, 1], 1), fullgraph=True)
    assert torch.equal(compiled(X), X * 2) and count_of([3, 3], 3) == 2
    with pytest.raises(ValueError, match="Duplicate"):
        magneto.substitute_in_graph(operator.countOf)(count_of)
    with pytest.raises(TypeError, match="Signature mismatch"):
        magneto.substitute_in_graph(operator.concat)(lambda a: a)
    with pytest.raises(TypeError):
        magneto.substitute_in_graph(3)  # type: ignore[arg-type]


def test_errors_have_public_names() -> None:
    import magneto._install  # noqa: F401 (it has errors of its own)

    found = [exc.MagnetoError]
    for error in found:
        found += [one for one in error.__subclasses__() if one.__module__.startswith("magneto")]
        assert error.__module__ == "magneto.exc" and getattr(exc, error.__qualname__) is error, error
    caught = pytest.raises(exc.Unsupported, magneto.compile(lambda x: print(x), fullgraph=True), X).value
    assert isinstance(pickle.loads(pickle.dumps(caught)), exc.Unsupported)


# -- torch.compiler's names ------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> Any:
    magneto.install()
    yield
    magneto.uninstall()


@pytest.mark.usefixtures("installed")
def test_torchs_names_do_the_same(folders: Callable[[str], Any]) -> None:
    with folders("one"):
        compiled = torch.compile(program, name="gate", isolate_recompiles=True, shapes_spec={"x": [(2, 9), None]})
        call_with_rows(compiled, 2, 3, 9)
        assert captures() == 1 and repr(compiled).startswith("<compiled gate: ")
        data, info = torch.compiler.save_cache_artifacts() or pytest.fail("nothing was saved")
        assert torch.compiler.load_cache_artifacts(data).artifacts == info.artifacts
    with torch.compiler.set_stance("eager_then_compile"):
        compiled = torch.compile(program)
        call_with_rows(compiled, 4)
        assert captures() == 1
    disabled = torch.compiler.disable(program, reason="because")
    torch.compile(lambda x: (torch._dynamo.graph_break("m"), disabled(x)))(X)
    assert {reason.rpartition(" ")[2] for reason in magneto.stats()["break_reasons"]} == {"(m)", "(because)"}


@pytest.mark.usefixtures("installed")
def test_what_torch_compiler_has_and_is_not_there_is_an_error() -> None:
    assert torch.compiler.set_enable_guard_collectives(False) is False
    with pytest.raises(NotImplementedError, match="ranks"):
        torch.compiler.set_enable_guard_collectives(True)
    if hasattr(torch.compiler, "load_compiled_function"):
        with pytest.raises(NotImplementedError, match="ahead of time"):
            torch.compiler.load_compiled_function(None)


@pytest.mark.skipif(not hasattr(torch.compiler, "nested_compile_region"), reason="an older PyTorch")
def test_a_nested_region_is_part_of_the_graph() -> None:
    region = torch.compiler.nested_compile_region(program)
    both = magneto.compile(lambda x: region(x) + region(x), fullgraph=True)
    torch.testing.assert_close(both(X), program(X) * 2)
    assert torch.equal(region(X), program(X))
