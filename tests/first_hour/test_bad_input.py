"""What goes wrong: in backends, in user code, with objects of all kinds. The user sees an error of theirs, and can go on."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


def program(x: torch.Tensor) -> Any:
    return x.sin() + 1, x * 2


def goes_on() -> None:
    """Magneto works as ever."""
    compiled = magneto.compile(program)
    assert_same(compiled(X), program(X))


# -- backends -------------------------------------------------------------------------------------------------------------


def backend_that(make: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda graph_module, example_inputs: make(graph_module, example_inputs)


def failing_backend(graph_module: Any, example_inputs: Any) -> Any:
    return {}["missing"]


def test_backend_raises() -> None:
    compiled = magneto.compile(program, backend=failing_backend)
    for _ in range(2):
        with pytest.raises(magneto.exc.BackendFailed, match="raised KeyError.*'missing'") as caught:
            compiled(X)
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert traceback.extract_tb(cause.__traceback__)[-1].name == "failing_backend"
    goes_on()


def test_backend_raises_and_the_program_handles_it() -> None:
    compiled = magneto.compile(program, backend=failing_backend)

    def outer(x: torch.Tensor) -> Any:
        try:
            return compiled(x)
        except magneto.exc.BackendFailed:
            return program(x)

    assert_same(outer(X), program(X))


@pytest.mark.lenient
def test_backend_raises_and_errors_are_suppressed() -> None:
    with magneto.config.patch(suppress_errors=True):
        compiled = magneto.compile(program, backend=failing_backend)
        assert_same(compiled(X), program(X))
        assert_same(compiled(X), program(X))
    assert magneto.stats()["fallbacks"] == {"backend error": 1}


@pytest.mark.parametrize("value", [None, 3, [], "text"])
def test_backend_returns_what_can_not_be_called(value: Any) -> None:
    compiled = magneto.compile(program, backend=backend_that(lambda gm, inputs: value))
    with pytest.raises(magneto.exc.BackendFailed, match="must return a callable"):
        compiled(X)
    goes_on()


WRONG_RESULTS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda results: results[:1], "returned 1 results; it must return 2"),
    (lambda results: [*results, *results], "returned 4 results; it must return 2"),
    (lambda results: None, "None"),
    (lambda results: 5, "int"),
    (lambda results: results[0], "Tensor"),
    (lambda results: [1, 2], "int"),
    (lambda results: [results[0], None], "None"),
    (lambda results: {"a": results[0], "b": results[1]}, "dict"),
]


@pytest.mark.parametrize(("spoil", "words"), WRONG_RESULTS)
def test_backend_gives_wrong_results(spoil: Callable[[Any], Any], words: str) -> None:
    compiled = magneto.compile(program, backend=backend_that(lambda gm, inputs: lambda *args: spoil(gm.forward(*args))))
    with pytest.raises(magneto.exc.BackendFailed, match=words):
        compiled(X)
    goes_on()


@pytest.mark.parametrize("results", [tuple, list, iter])
def test_results_of_a_backend_come_in_a_tuple_or_list(results: Callable[[Any], Any]) -> None:
    compiled = magneto.compile(
        program, backend=backend_that(lambda gm, inputs: lambda *args: results(gm.forward(*args)))
    )
    if results is iter:
        with pytest.raises(magneto.exc.BackendFailed, match="iterator"):
            compiled(X)
    else:
        assert_same(compiled(X), program(X))


def test_compiled_graph_raises() -> None:
    def raising(*args: Any) -> Any:
        raise LookupError("at run time")

    compiled = magneto.compile(program, backend=backend_that(lambda gm, inputs: raising))
    for _ in range(2):
        with pytest.raises(LookupError, match="at run time"):
            compiled(X)
    goes_on()


def test_backend_takes_other_arguments() -> None:
    compiled = magneto.compile(program, backend=lambda graph_module: graph_module.forward)
    with pytest.raises(magneto.exc.BackendFailed, match="TypeError"):
        compiled(X)
    with pytest.raises(magneto.exc.BackendFailed, match="mode"):
        magneto.compile(program, backend=lambda gm, inputs: gm.forward, mode="max-autotune")(X)
    goes_on()


def test_backend_exits_the_process() -> None:
    def leaving(graph_module: Any, example_inputs: Any) -> Any:
        sys.exit(3)

    with pytest.raises(SystemExit):
        magneto.compile(program, backend=leaving)(X)

    def interrupted(graph_module: Any, example_inputs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        magneto.compile(program, backend=interrupted)(X)
    goes_on()


def test_backend_changes_the_graph_wrongly() -> None:
    def emptied(graph_module: Any, example_inputs: Any) -> Any:
        for node in list(graph_module.graph.nodes):
            if node.op == "output":
                node.args = ((),)
        graph_module.recompile()
        return graph_module.forward

    with pytest.raises(magneto.exc.BackendFailed, match="returned 0 results; it must return 2"):
        magneto.compile(program, backend=emptied)(X)
    goes_on()


def test_backend_that_compiles_and_calls_compiled_code() -> None:
    helper = magneto.compile(program)

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        helper(X)
        inner = magneto.compile(graph_module.forward, backend="aot_eager")
        inner(*example_inputs)
        return inner

    assert_same(magneto.compile(program, backend=backend)(X), program(X))


# -- user code ------------------------------------------------------------------------------------------------------------


class Unhelpful:
    """Objects that raise whatever is asked of them."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no ==")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no bool")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def same_outcome(function: Callable[..., Any], *args: Any) -> None:
    """Result or exception (with its lines, cause and context) as eager's, twice."""

    def outcome(called: Callable[..., Any]) -> Any:
        try:
            return called(*args)
        except BaseException as error:
            lines = []
            current: BaseException | None = error
            while current is not None:
                frames = [
                    (f.name, f.lineno) for f in traceback.extract_tb(current.__traceback__) if f.filename == __file__
                ]
                lines.append((type(current).__name__, str(current), frames[1:] if current is error else frames))
                current = current.__cause__ or current.__context__
            return lines

    want = outcome(function)
    compiled = magneto.compile(function)
    for _ in range(2):
        assert_same(outcome(compiled), want)
    goes_on()


def test_objects_that_raise() -> None:
    bad = Unhelpful()
    same_outcome(lambda x: x + 1 if bad else x, X)
    same_outcome(lambda x: (x + 1, bad.attribute), X)
    same_outcome(lambda x: (x + 1, bad == 1), X)
    same_outcome(lambda x: (x + 1, {bad: 1}), X)
    same_outcome(lambda x: (x + 1, repr(bad)), X)
    same_outcome(lambda x: (x + 1, bad + x), X)
    same_outcome(lambda x, b: x + 1, X, bad)
    same_outcome(lambda x, b: (x + 1, b is bad), X, bad)


def test_error_in_the_middle() -> None:
    def middle(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.dim() == 1:
            raise NotImplementedError(f"{y.dim()} dimensions")
        return y

    same_outcome(middle, X)


def test_error_in_a_handler() -> None:
    def handling(x: torch.Tensor) -> torch.Tensor:
        try:
            x.reshape(7)
        except RuntimeError as error:
            raise KeyError("second") from error
        return x

    same_outcome(handling, X)

    def implicit(x: torch.Tensor) -> torch.Tensor:
        try:
            return {}[x]
        except KeyError:
            return x.missing_attribute

    same_outcome(implicit, X)


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, RecursionError, MemoryError]
)
def test_exceptions_of_all_kinds(kind: type[BaseException]) -> None:
    def raising(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        raise kind("own")

    same_outcome(raising, X)


def test_wrong_calls_of_torch() -> None:
    for wrong in (
        lambda x: torch.add(x),
        lambda x: torch.add(x, "a"),
        lambda x: x.sum(dim=9),
        lambda x: x @ torch.ones(5),
        lambda x: torch.zeros(-1),
        lambda x: x.view(4),
        lambda x: torch.cat([x, 3]),
        lambda x: x[7],
        lambda x: x["a"],
        lambda x: x.nothing,
        lambda x: torch.nothing(x),
        lambda x: torch.nn.functional.conv2d(x, x),
        lambda x: x.to("nowhere"),
        lambda x: x + torch.ones(6, device="meta"),
    ):
        same_outcome(wrong, X)


def test_error_only_at_a_later_call() -> None:
    def later(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        return x * table["scale"]

    compiled = magneto.compile(later)
    assert_same(compiled(X, {"scale": 2}), X * 2)
    with pytest.raises(KeyError, match="scale"):
        compiled(X, {})
    assert_same(compiled(X, {"scale": 3}), X * 3)


def test_error_in_a_property_a_hook_and_an_init() -> None:
    class Thing:
        def __init__(self, ok: bool) -> None:
            if not ok:
                raise ValueError("not ok")

        @property
        def value(self) -> int:
            return self.hidden  # type: ignore[attr-defined]

    same_outcome(lambda x: (x + 1, Thing(False)), X)
    same_outcome(lambda x: (x + 1, Thing(True).value), X)
    module = torch.nn.Linear(6, 2)
    module.register_forward_hook(lambda module, args, result: result.reshape(100))
    same_outcome(lambda x: module(x) + 1, X)
    with pytest.raises(RuntimeError, match="shape"):
        magneto.compile(module)(X)


def test_warnings_as_errors() -> None:
    def warning(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        warnings.warn("careful", stacklevel=1)
        return y

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_outcome(warning, X)


def test_wrong_arguments_are_pythons_error() -> None:
    def takes(x: torch.Tensor, *, by: int) -> torch.Tensor:
        return x * by

    compiled = magneto.compile(takes)
    for args, kwargs in (((X,), {}), ((X, 1), {}), ((X,), {"by": 1, "other": 2}), ((), {"by": 1})):
        with pytest.raises(TypeError) as want:
            takes(*args, **kwargs)
        with pytest.raises(TypeError) as got:
            compiled(*args, **kwargs)
        assert str(got.value) == str(want.value)
    assert_same(compiled(X, by=2), X * 2)


def test_async_functions_and_generators() -> None:
    async def coroutine(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def generator(x: torch.Tensor) -> Any:
        yield x + 1
        yield x * 2

    async def asynchronous_generator(x: torch.Tensor) -> Any:
        yield x + 1

    import asyncio

    async def collect(source: Any) -> list[Any]:
        return [item async for item in source]

    assert_same(asyncio.run(magneto.compile(coroutine)(X)), X + 1)
    assert_same(list(magneto.compile(generator)(X)), [X + 1, X * 2])
    assert_same(asyncio.run(collect(magneto.compile(asynchronous_generator)(X))), [X + 1])
    goes_on()


@pytest.mark.parametrize(
    "argument",
    [
        object(),
        sys,
        torch,
        int,
        len,
        lambda: 1,
        iter([1, 2]),
        (i for i in range(3)),
        memoryview(b"abc"),
        bytearray(b"abc"),
        range(3),
        slice(1, 2),
        sys.stdout,
        type("Made", (), {})(),
        Exception("e"),
        {1: {2: {3: [4, (5, {6})]}}},
        frozenset({1}),
        1 << 200,
        float("nan"),
        float("inf"),
        -0.0,
        1j,
        "\ud800",
        b"\x00",
        torch.Size([1, 2]),
        torch.Generator(),
        torch.get_default_dtype(),
        property(),
        staticmethod(len),
        warnings.catch_warnings(),
        {}.keys(),
        zip([1], [2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_of_all_types(argument: Any) -> None:
    """Whatever is passed is handed on as it is."""

    def handing(x: torch.Tensor, thing: Any, *rest: Any, **named: Any) -> Any:
        return x + 1, thing, rest, named, [thing], thing is rest[0]

    compiled = magneto.compile(handing)
    for _ in range(2):
        y, *others = compiled(X, argument, argument, name=argument)
        assert torch.equal(y, X + 1)
        thing, rest, named, items, same = others
        assert all(one is argument for one in (thing, rest[0], named["name"], items[0])) and same


def test_recursive_containers() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    table: dict[str, Any] = {}
    table["self"] = table

    def through(x: torch.Tensor, items: list[Any], entries: dict[str, Any]) -> Any:
        return x + items[1][1][0], entries["self"]["self"] is entries

    compiled = magneto.compile(through)
    for _ in range(2):
        assert_same(compiled(X, loop, table), through(X, loop, table))


def test_very_many_arguments_locals_and_constants() -> None:
    names = [f"a{i}" for i in range(600)]
    source = f"def wide({', '.join(names)}):\n"
    source += "".join(f"    b{i} = a{i} + {i}\n" for i in range(600))
    source += "    return " + " + ".join(f"b{i}" for i in range(600))
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    values = [X if i % 100 == 0 else i for i in range(600)]
    assert_same(magneto.compile(namespace["wide"])(*values), namespace["wide"](*values))


def test_very_long_and_deeply_nested_programs() -> None:
    source = "def long(x):\n" + "    x = x + 1\n" * 2000 + "    return x\n"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    assert_same(magneto.compile(namespace["long"])(X), namespace["long"](X))

    def nested(depth: int) -> Any:
        return (nested(depth - 1),) if depth else 1

    deep = nested(500)
    compiled = magneto.compile(lambda x, tree: (x + 1, tree))
    for _ in range(2):
        y, tree = compiled(X, deep)
        assert torch.equal(y, X + 1) and tree is deep


def test_globals_are_missing() -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec("def orphan(x):\n    return missing(x)\n", namespace)
    same_outcome(namespace["orphan"], X)


def test_config_is_changed_wrongly_and_works_on() -> None:
    with pytest.raises(magneto.exc.InvalidSetting):
        magneto.config.no_such_setting = 1
    with pytest.raises(magneto.exc.InvalidValue):
        magneto.config.cache_size_limit = "8"
    goes_on()


def test_syntax_of_a_newer_python(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that this Python can't read: the user sees Python's own SyntaxError, and the program goes on."""
    (tmp_path / "from_the_future.py").write_text("def double(x):\n    return x |> 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def program(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            import from_the_future

            return from_the_future.double(y)
        except SyntaxError as error:
            return y, error.filename, error.lineno

    def leaves(x: torch.Tensor) -> Any:
        import from_the_future

        return from_the_future.double(x)

    compiled, leaving = magneto.compile(program), magneto.compile(leaves)
    for _ in range(2):
        assert_same(compiled(X), program(X))
        with pytest.raises(SyntaxError, match="invalid syntax"):
            leaving(X)


def test_code_with_an_opcode_that_is_unknown() -> None:
    """Code that another compiler made, or another version: CPython runs it, and the reason is told."""
    import opcode

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    unknown = next(number for number in range(1, 256) if opcode.opname[number].startswith("<"))
    code = program.__code__.co_code
    program.__code__ = program.__code__.replace(co_code=code + bytes([unknown, 0]))  # behind the return: never run
    compiled = magneto.compile(program)
    for _ in range(2):
        assert_same(compiled(X), X + 1)
