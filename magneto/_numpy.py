"""Calls of NumPy that a graph holds as text: "numpy.add(a0, 2.0)" of the arrays a0, a1...

They are NumPy's own, so that results are eager's to the last bit. What only eager can do in its place, a warning or an
error, makes the call fail: the run is undone then, and CPython runs the program.
"""

from __future__ import annotations

import copy
import operator
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy

# What the program replaces in the module later is not what it meant.
ORIGINALS = types.SimpleNamespace(**{**vars(numpy), "fft": numpy.fft, "linalg": numpy.linalg, "lib": numpy.lib})


def function(call: str, arrays: int) -> Callable[..., Any]:
    """The call as a function of its arrays."""
    names = ", ".join(f"a{i}" for i in range(arrays))
    return eval(f"lambda {names}: {call}", NAMES)  # type: ignore[no-any-return]  # a text that we wrote


def checked(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same, giving an array; it raises where eager would warn."""

    def run(*arrays: Any) -> Any:
        told = {kind: how if how == "ignore" else "raise" for kind, how in numpy.geterr().items()}
        try:
            with numpy.errstate(**told):  # type: ignore[arg-type]
                return numpy.asarray(compute(*arrays))
        except FloatingPointError as error:
            raise FloatingPointError(f"magneto: not so in this run: NumPy says nothing of {error}") from None

    return run


def sample(compute: Callable[..., Any], *arrays: Any) -> Any:
    """What the function gives for arrays whose contents mean nothing."""
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return compute(*arrays)
        except numpy.linalg.LinAlgError:  # zeros have no inverse
            return compute(*[regular(array) for array in arrays])


def exact(compute: Callable[..., Any], *arrays: Any) -> Any:
    """What the function gives for these very arrays; NotImplemented: only a run can say it, for eager would warn."""
    with numpy.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return compute(*arrays)
        except FloatingPointError:
            return NotImplemented


def regular(array: Any) -> Any:
    """A matrix that has one."""
    square = array.ndim >= 2 and array.shape[-1] == array.shape[-2]
    return array + numpy.eye(array.shape[-1], dtype=array.dtype) if square else array


def array_like(size: tuple[int, ...], stride: tuple[int, ...], dtype: str, writable: bool) -> Any:
    """Such an array; strides in bytes."""
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
    memory = numpy.zeros(last + numpy.dtype(dtype).itemsize, dtype="u1")
    made = numpy.ndarray(size, dtype, memory, 0, stride)
    made.flags.writeable = writable
    return made


def copy_of_view(array: Any) -> Any:
    """A copy that shows another array's memory, as this one does."""
    base = array.base
    if not isinstance(base, numpy.ndarray) or not base.flags.c_contiguous:
        return array.copy("K")[...]
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return numpy.ndarray(array.shape, array.dtype, base.copy(), offset, array.strides)


def state_text(generator: Any) -> str:
    """What `drawn` is given first, as Python reads it back: the class and the state of a generator."""
    legacy = isinstance(generator, numpy.random.RandomState)
    state: Any = generator.get_state(legacy=False) if legacy else generator.bit_generator.state
    if state["bit_generator"] == "MT19937":
        key = state["state"]["key"].tobytes()
        state = {**state, "state": {"key": key, "pos": state["state"]["pos"]}}
    return f"{legacy}, {state!r}"


def drawn(legacy: bool, state: dict[str, Any], method: str, *args: Any, **kwargs: Any) -> Any:
    """What such a generator gives."""
    if state["bit_generator"] == "MT19937":
        key = numpy.frombuffer(state["state"]["key"], numpy.uint32)
        state = {**state, "state": {"key": key, "pos": state["state"]["pos"]}}
    generator: Any
    if legacy:
        generator = numpy.random.RandomState(0)
        generator.set_state(state)
    else:
        generator = numpy.random.default_rng(0)
        generator.bit_generator.state = state
    return getattr(generator, method)(*args, **kwargs)


def copied(generator: Any) -> Any:
    """A generator in the same state."""
    return copy.deepcopy(generator)


# What a call may name.
NAMES = {"numpy": ORIGINALS, "operator": operator, "drawn": drawn, "copy_of_view": copy_of_view}
