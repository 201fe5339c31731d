"""The C++ core as the Python layer sees it (src/api)."""

import types
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypedDict

import torch

torch_version: str
"""The PyTorch that the core was built against."""

class Options(TypedDict):
    fullgraph: bool
    dynamic: bool | None
    backend: str | Callable[..., Any]  # str: one of _backends.NATIVE
    mode: str  # one of _options.MODES
    options: dict[str, Any]  # settings, by their names in magneto.config
    disable: bool
    name: str
    isolate_recompiles: bool
    shapes: dict[str, tuple[Any, ...]] | None  # magneto/_shapes_spec.py

class ExplainReport(TypedDict):
    graphs: list[Any]  # torch.fx.GraphModule
    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[tuple[str, list[tuple[str, int, str]]]]  # reason; frames as file, line, function
    ops_per_graph: list[list[Any]]  # targets of the torch nodes
    out_guards: list[str]
    planned_peaks: list[int]  # bytes, of each compiled program
    compile_times: dict[str, float]  # stage -> seconds

class CompiledFunction:
    """A compiled function or method; a descriptor as functions are."""

    __wrapped__: Callable[..., Any]
    _torchdynamo_orig_callable: Callable[..., Any]
    __name__: str
    __qualname__: str
    __doc__: str | None
    __module__: str
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any: ...

class CallMixin:
    """Base of types whose call slot goes straight to `_compiled`, without running Python."""

    _compiled: CompiledFunction
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

def compile(callable: Callable[..., Any], options: dict[str, Any], /) -> CompiledFunction: ...
def disable(fn: Callable[..., Any], recursive: bool, /) -> Callable[..., Any]: ...
def set_disabled(on: bool, /) -> bool:
    """Turns capture and compiled code off or on for this thread; gives the previous state."""

def reset() -> None: ...
def stats() -> dict[str, Any]: ...
def reduce_graph(
    nodes: list[tuple[list[int], list[int]]],
    classes: list[int],
    inputs: list[int],
    outputs: list[int],
    question: Callable[[list[int], list[int], list[int], list[int]], bool | None],
    /,
) -> tuple[list[int], list[int], list[int], list[int]]:
    """The smallest part of a graph that the answer is true for; None ends it. src/debug/reduce.h."""

def reduce_operators(graph: Any, question: Callable[[Any, list[int]], bool | None], /) -> tuple[Any, list[int]]:
    """The same of a graph of ATen operators: the part, and the values of the whole that its inputs are."""

def compute_operators(
    graph: Any, inputs: Sequence[Any], compiled: bool, values: list[int] | None, /
) -> list[torch.Tensor]:
    """Runs a graph of ATen operators, compiled or one by one: its outputs, or those values."""

def operator_calls(graph: Any, /) -> Any: ...
def graph_text(graph: Any, /) -> str: ...
def graph_from_text(text: str, /) -> Any: ...
def graph_inputs(graph: Any, /) -> list[tuple[str, torch.Tensor]]:
    """Name, and a tensor without data, of each input."""

def input_values(graph: Any, /) -> list[int]: ...
def is_sized(graph: Any, /) -> bool: ...
def with_numbers(graph: Any, inputs: Sequence[Any], /) -> Any: ...
def record_numbers(on: bool, /) -> None:
    """Graphs, passes and kernels are numbered from 1 from here on, and their names kept."""

def function_of(frame: types.FrameType) -> types.FunctionType:
    """The function that a frame runs."""

def numbered() -> dict[str, list[str]]:
    """Of each kind (graph, pass, kernel) the names of all that was numbered."""

def explain(callable: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /) -> ExplainReport: ...
def set_reorderable_functions(functions: AbstractSet[Any], /) -> None: ...
def debug_dump(
    callable: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /
) -> list[dict[str, str]]: ...
def is_compiling() -> bool: ...
def traced_graphs() -> list[tuple[tuple[int, int, int], Any, str]]: ...
def forget_traced() -> None: ...
def traced_guards() -> list[tuple[tuple[int, int, int], str]]: ...
def traced_runs() -> list[tuple[tuple[int, int, int], str]]:
    """(compile id, JSON) of each program whose steps TORCH_TRACE has timed."""

def kernel_texts(kernel: str, target: str = "host", variant: int = 0, lines: bool = False, /) -> tuple[str, str, str]:
    """Schedule, LLVM IR and assembly of a kernel of the loop IR; `lines`: see codegen::CompileOptions."""

def compile_times() -> dict[str, tuple[list[float], list[int]]]:
    """Stage -> seconds of each run, and peaks of memory in bytes, if they were measured."""

def history() -> list[tuple[str, str, int, int, str, str, str, int]]:
    """(event, file, function's first line, line, function, cause, example, count), in order of the first time."""

def captured_in(code: types.CodeType) -> tuple[int, str] | None:
    """Captures that went through the code, and where the last of them began."""

def runs_of(compiled: CompiledFunction) -> tuple[dict[str, int], list[tuple[types.CodeType, int, int, bool, int]]]:
    """Calls left to CPython by cause; (code, line, captures, given up, runs under CPython) of each segment."""

def enter_block(compiled: CompiledFunction, skipped: tuple[str, ...], left_alone: object = None, /) -> None:
    """Functions that this thread calls from here on run as `compiled` would run them, except for those of files whose
    names begin with one of `skipped`, and for the code `left_alone`."""

def run_backward(engine: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
    """What autograd's `engine` gives for the arguments, by one program where compiled autograd is on."""

def enter_compiled_autograd(compiler: Callable[..., Any] | str | bool | None, dynamic: bool | None, /) -> None:
    """Backwards of this thread are compiled from here on, by a callable that gets a GraphModule, by the backend of that
    name, by the default one (None), or not (False)."""

def leave_compiled_autograd() -> None:
    """Ends the innermost such block."""

def compile_all_backwards(on: bool, /) -> None:
    """Those of all threads are, outside of such blocks."""

def compiles_backwards() -> bool:
    """Whether this thread's are."""

def calling() -> CompiledFunction | None:
    """The compiled callable, a frame of which CPython runs this for: a side exit, and what it calls."""

def leave_block() -> None:
    """Ends the innermost block of this thread."""

def conditional(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any], /
) -> tuple[list[Any], Any] | None:
    """The leaves and the structure of torch.cond's result in a capture, where the functions become graphs of their
    own; else None."""

def repeated(
    condition: Callable[..., Any], body: Callable[..., Any], carried: list[torch.Tensor], /
) -> list[torch.Tensor] | None:
    """The tensors behind torch.while_loop in a capture; else None."""

def scanned(
    combine: Callable[..., Any], carried: list[torch.Tensor], xs: list[torch.Tensor], reverse: bool, least: int, /
) -> tuple[list[Any], Any] | None:
    """The leaves and the structure of what a scan gives in a capture, where its step becomes a graph of its own: of the
    carry, and what the steps give, stacked. None: it is no graph, or has fewer steps than `least`."""

def copied_alone(tensor: torch.Tensor, memo: dict[int, Any], /) -> bool:
    """In a capture: whether it copies the tensor by an operator, with that memo; else False."""

def make_class(metaclass: type, name: str, bases: tuple[type, ...], names: dict[str, Any], /) -> type:
    """type.__new__ of them, but no `__set_name__` of a value and no `__init_subclass__` of a base is called."""

def copied_plainly(tensor: torch.Tensor, /) -> bool:
    """In a capture: whether it lets copy.copy, which asks, make another tensor of its memory; else False."""

def enter_dispatch_mode(mode: Any, /) -> None:
    """In a capture: operators go to the mode's __torch_dispatch__."""

def leave_dispatch_mode() -> None:
    """In a capture: the innermost such mode is left."""

def set_inference_mode(enabled: bool, /) -> None:
    """In a graph: torch.inference_mode is entered, or left and what it found put back."""

def largest(numbers: Sequence[int], /) -> int:
    """max(numbers): in a capture without asking which one it is"""

def linear_mark(function: Callable[..., Any], primals: tuple[Any, ...], /) -> Any:
    """In a capture: a mark, from where nothing may change that the function can reach. None: it is not linearized."""

def linear_check(mark: Any, given: list[Any], results: list[Any], /) -> None:
    """In a capture: begins anew where something has changed since, or the results are not a linear map's own."""

def branch_taken(pred: Any, /) -> bool:
    """`bool(pred)`."""

def comptime(callback: Callable[[Any], object], /) -> bool:
    """In a capture: calls `callback` with a view of the capture, and is True. Else False."""

def cache_directory() -> str: ...
def aot_open(path: str, /) -> tuple[object, str]: ...
def aot_run(program: object, /, *tensors: torch.Tensor) -> list[torch.Tensor]: ...
def aot_layout() -> tuple[str, str]: ...
def nest_calls(
    nodes: list[tuple[list[str], list[int]]], /
) -> list[tuple[str, int, list[tuple[int, int]], list[int], list[int]]]:
    """Of nodes (calls that they are in, the outermost first; nodes that they use): the calls, first the whole, each
    (key, outer call, (node, -1) or (-1, call) in order, nodes from outside that it reads, its nodes that are read)."""

def save_cache_artifacts() -> tuple[bytes, list[str]] | None: ...
def load_cache_artifacts(artifacts: bytes, /) -> list[str]: ...
def set_config(name: str, value: bool | int | float | str, /) -> None: ...
def setting_rows() -> list[tuple[str, bool | int | float | str, float | None, str, str, str, str]]:
    """(name, default, minimum, "process" | "callable" | "tests", environment variable, torch's names, doc) of each."""

def backend_rows() -> list[tuple[str, str, str]]:
    """(name, other names, doc) of each of Magneto's own backends, the default first."""

def set_stance(number: int, /) -> None:
    """The process's stance, by its number in magneto._stance.STANCES."""

def allow_in_graph(fn: Callable[..., Any], /) -> None: ...
def assume_constant_result(fn: Callable[..., Any], /) -> None: ...
def disallow_in_graph(fn: Callable[..., Any], /) -> None: ...
def forbid_in_graph(fn: Callable[..., Any], /) -> None: ...
def substitute(fn: Callable[..., Any], substitute: types.FunctionType, /) -> None:
    """Captures interpret `substitute` where `fn` is called."""

def errors_on_break(on: bool | None, /) -> None:
    """Begins a region of this thread in which breaks are errors, or are not; None ends it."""

def leave_frame() -> None:
    """Called in a side exit: CPython runs the rest of its frame."""

def set_compile_hooks(start: Callable[[str], object] | None, end: Callable[[str], object] | None, /) -> None:
    """Called with the id of each compile when it begins and when it ends."""

def refuse_fx_tracing(on: bool, /) -> None:
    """Whether a capture while torch.fx.symbolic_trace is at work is an error."""

def force_backend(backend: str | Callable[..., Any] | None, /) -> str | Callable[..., Any] | None:
    """All compiled callables use that backend; None: each its own. Gives what held before."""
