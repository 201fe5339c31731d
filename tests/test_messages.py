"""What users read when a graph breaks or a capture fails, and that what repeats is said once."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import magneto
from magneto import _log, _test_settings, exc

X = torch.ones(3)
HERE = __file__


class Texts:
    """Keeps what is logged."""

    def __init__(self, artifact: str) -> None:
        self.taken: list[str] = []
        _log.listen(artifact, self.take)

    def take(self, text: str) -> None:
        self.taken.append(text)


@pytest.fixture
def breaks() -> Texts:
    return Texts("graph_breaks")


def line_of(function: object, text: str) -> int:
    first = function.__code__.co_firstlineno
    lines = Path(HERE).read_text().splitlines()[first - 1 :]
    return first + next(number for number, line in enumerate(lines) if text in line)


def inner(x: torch.Tensor) -> torch.Tensor:
    return x + len(str(print(end="")))


def outer(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return inner(y) + y


def test_a_break_has_stack_mark_cause_hint_and_page(breaks: Texts) -> None:
    magneto.compile(outer, backend="eager")(X)
    (text,) = breaks.taken
    at, called = line_of(inner, "print("), line_of(outer, "inner(y)")
    assert text.startswith(f"Graph break in user code at {HERE}:{at}\nReason: InputOutput: call of builtins.print\n")
    assert (
        "\n  Explanation: the program prints\n  Hint: magneto.config.reorderable_logging_functions.add(print)" in text
    )
    assert Path(text.partition("  Page: ")[2].partition("\n")[0]).read_text().startswith("# InputOutput")
    assert text.endswith(
        f'User code traceback:\n  File "{HERE}", line {called}, in outer\n'
        "    return inner(y) + y\n"
        "           ^^^^^^^^\n"
        f'  File "{HERE}", line {at}, in inner\n'
        '    return x + len(str(print(end="")))\n'
        "                       ^^^^^^^^^^^^^\n"
    )


def test_fullgraph_errors_are_the_same_text(breaks: Texts) -> None:
    with pytest.raises(exc.Unsupported) as raised:
        magneto.compile(outer, backend="eager", fullgraph=True)(X)
    assert str(raised.value) == breaks.taken[0]


def test_breaks_that_repeat_are_folded(breaks: Texts) -> None:
    for _ in range(9):
        magneto.compile(outer, backend="eager")(X)
    counts = [text.partition("for the ")[2].partition(" time")[0] for text in breaks.taken]
    assert counts == ["", "2nd", "4th", "8th"] and breaks.taken[0].startswith("Graph break")
    assert magneto.stats()["break_reasons"] == {"InputOutput: call of builtins.print": 9}


def test_explain_folds_breaks() -> None:
    def several(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = inner(x)
        return x

    found = magneto.explain(several)(X)
    assert found.graph_break_count == len(found.break_reasons) == 2  # a loop is captured once
    assert str(found).count("Reason: InputOutput") == 1 and "Break Reason 1: (2 times)" in str(found)
    explanation, *_ = found
    assert "1. InputOutput: call of builtins.print (2 times)\n" in explanation


def test_explain_as_tables() -> None:
    found = magneto.explain(outer)(X)
    text = found.tables(width=70)
    assert all(len(line) <= 70 for line in text.splitlines())
    for part in (
        "╭─",
        "Graph breaks",
        "InputOutput",
        'print(end="")',
        "│ 1     │ 1     │ *",
        "│ graphs",
        "TENSOR_MATCH",
        "capture (ms)",
    ):
        assert part in text.replace("│ graphs ", "│ graphs"), part
    assert "\033[1m" in found.tables(color=True) and "\033" not in text
    assert repr(found) == found.tables() and "<table>" in found._repr_html_()


@pytest.fixture
def failing() -> Iterator[None]:
    # A program that the cache on disk has is not lowered.
    with (
        _test_settings.patch(fail_stage="compile.backend.lowering"),
        magneto.config.patch(strict=False, debug_dir=tempfile.mkdtemp(), disk_cache=False),
    ):
        yield


def fails(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@pytest.mark.lenient
@pytest.mark.usefixtures("failing")
def test_an_internal_error_shows_line_stage_and_report_and_goes_on() -> None:
    with pytest.warns(RuntimeWarning) as said:
        for _ in range(3):
            assert torch.equal(magneto.compile(fails)(X + 1), fails(X + 1))
    (text,) = [str(one.message) for one in said]
    assert text.startswith(f"Magneto could not capture fails ({HERE}:{fails.__code__.co_firstlineno})")
    assert "in the stage compile.backend.lowering" in text and f'File "{HERE}", line ' in text and ", in fails" in text
    assert "suppress_errors" in text and "magneto.disable" in text and "backend='aot_eager'" in text
    (first, *_) = sorted(Path(magneto.config.debug_dir).iterdir())
    assert str(first) in text
    report = first.read_text()
    for part in ("a test asks for an error", "return x.sin() + 1", "RETURN_VALUE", "aten.sin", "PyTorch", "settings: "):
        assert part in report, part
    assert magneto.stats()["fallbacks"] == {"internal error": 3}


@pytest.mark.lenient
@pytest.mark.usefixtures("failing")
def test_an_internal_error_is_an_error_under_fullgraph() -> None:
    with pytest.raises(exc.Unsupported, match="in the stage compile.backend.lowering"):
        magneto.compile(fails, fullgraph=True)(X)


class Errors(logging.Handler):
    """Keeps the records that are shown whatever TORCH_LOGS says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def errors() -> Iterator[list[str]]:
    handler = Errors()
    logger = logging.getLogger(_log.COMPONENTS["dynamo"])
    logger.addHandler(handler)
    yield handler.texts
    logger.removeHandler(handler)


@pytest.mark.lenient
@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("verbose", [False, True])
def test_suppressed_errors_are_in_the_log(errors: list[str], verbose: bool) -> None:
    with magneto.config.patch(suppress_errors=True, verbose=verbose), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(magneto.compile(fails)(X), fails(X))
    (text,) = errors
    first = fails.__code__.co_firstlineno
    assert text.startswith(f"WON'T CONVERT fails {HERE} line {first}\ndue to:\ninternal error: ")
    assert "\n\nfrom user code:\n  File " in text and text.endswith("==========")
    assert ("Set torch._dynamo.config.verbose=True for more information" in text) != verbose
    assert ("PyTorch" in text) == verbose


@pytest.mark.lenient
def test_a_backend_that_raises_is_suppressed_with_its_stack(errors: list[str]) -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        raise ValueError("not this one")

    with magneto.config.patch(strict=False, suppress_errors=True):
        assert torch.equal(magneto.compile(fails, backend=backend)(X), fails(X))
    (text,) = errors
    assert "WON'T CONVERT fails" in text and 'raise ValueError("not this one")' in text and "in backend" in text
    with pytest.raises(exc.BackendFailed) as raised:
        magneto.compile(fails, backend=backend)(X)
    assert isinstance(raised.value.__cause__, ValueError) and raised.value.__cause__.__traceback__ is not None


@pytest.mark.lenient
def test_limits_are_said_once_and_counted() -> None:
    def grows(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with magneto.config.patch(strict=False, cache_size_limit=2), pytest.warns(RuntimeWarning) as said:
        for _ in range(3):
            compiled = magneto.compile(grows, backend="eager", dynamic=False)
            for size in range(1, 5):
                compiled(torch.ones(size))
    (text,) = [str(one.message) for one in said]
    assert text.startswith("magneto hit config.cache_size_limit (2)\n    function: '") and "grows' (" in text
    assert "\n    last reason: 0/1: tensor 'L['x']' size mismatch at index 0. expected 2, actual 3\n" in text
    assert magneto.stats()["fallbacks"] == {"cache_size_limit": 3}


@pytest.mark.lenient
def test_what_is_said_never_ends_a_program(errors: list[str]) -> None:
    """Where the user makes errors of warnings, they are lines of the log: results are eager's."""

    def grows_again(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = magneto.compile(grows_again, backend="eager", dynamic=False)
    with magneto.config.patch(strict=False, cache_size_limit=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in range(1, 5):
            assert torch.equal(compiled(torch.ones(size)), torch.ones(size) + 1)
    (text,) = errors
    assert text.startswith("magneto hit config.cache_size_limit (2)\n")


@pytest.mark.lenient
def test_functions_that_close_over_something_have_a_line() -> None:
    """Their first instructions are no line's."""
    lists: list[list[int]] = []

    def closing(n: int) -> object:
        return lambda x, options: (x + n, lists.append(options))

    function = closing(1)
    compiled = magneto.compile(function)
    with magneto.config.patch(cache_size_limit=1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in range(4):
            compiled(torch.ones(2, dtype=[torch.float32, torch.float64, torch.int64, torch.bool][size]), [1])
    assert caught
    for each in caught:
        assert f"{HERE}:{function.__code__.co_firstlineno}" in str(each.message)
