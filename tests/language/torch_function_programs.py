"""__torch_function__: classes of tensors and others, and modes, which say what calls of torch mean."""

from __future__ import annotations

from typing import Any

import torch
from programs import Programs, vector
from torch.nn import functional
from torch.overrides import TorchFunctionMode

programs = Programs()

SEEN: list[str] = []


def name_of(function: Any) -> str:
    return getattr(function, "__name__", "?")


class Plain(torch.Tensor):
    pass


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append(name_of(func))
        return super().__torch_function__(func, types, args, kwargs or {})


class Unwrapped(torch.Tensor):
    """Its results are plain tensors."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Measured(torch.Tensor):
    """Hands an attribute on to what is computed of it."""

    unit: str

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Measured):
            result.unit = "*".join(arg.unit for arg in args if isinstance(arg, Measured))
        return result

    def named(self) -> str:
        return f"in {self.unit}"

    @property
    def halved(self) -> Any:
        return self / 2


class Shouting(torch.Tensor):
    """With methods and operators of its own."""

    def relu(self) -> Any:
        return super().relu() * 100

    def __add__(self, other: Any) -> Any:
        return super().__mul__(other)


class Weight(torch.nn.Parameter):
    pass


HANDLERS: dict[Any, Any] = {}


def implements(function: Any) -> Any:
    def register(handler: Any) -> Any:
        HANDLERS[function] = handler
        return handler

    return register


class Diagonal:
    """No tensor at all: a table says what functions of torch do with it."""

    def __init__(self, size: int, value: float) -> None:
        self.size, self.value = size, value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLERS or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLERS[func](*args, **(kwargs or {}))


@implements(torch.mean)
def mean_of_diagonal(diagonal: Diagonal) -> float:
    return diagonal.value / diagonal.size


@implements(torch.add)
def add_diagonal(left: Any, right: Any) -> Any:
    if isinstance(left, torch.Tensor):
        return left + right.value
    return Diagonal(left.size, left.value + (right.value if isinstance(right, Diagonal) else right))


@implements(functional.relu)
def relu_of_diagonal(diagonal: Diagonal, inplace: bool = False) -> Diagonal:
    return Diagonal(diagonal.size, max(diagonal.value, 0.0))


class Doubling(TorchFunctionMode):
    def __init__(self, function: Any = torch.add) -> None:
        super().__init__()
        self.function, self.names = function, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(name_of(func))
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is self.function else result


class Nothing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def of(kind: Any, scale: float = 1.0, **attributes: Any) -> Any:
    made = vector(scale).as_subclass(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def twice(make: Any) -> Any:
    return tuple((lambda: (make(),)) for _ in range(2))


def computed(x: Any) -> Any:
    y = x * 2 + 1
    return y, 1 - x, y.view(2, 3).t(), torch.cat([x, y]), x[1:3], x == 2, x.max(0), functional.relu(-x), x.sum()


def asked(x: Any) -> Any:
    return x.shape, x.size(0), x.dim(), x.numel(), len(x), x.dtype, x.is_contiguous(), type(x), isinstance(x, Plain)


for _kind in (Plain, Logged, Unwrapped, Weight):
    for _program in (computed, asked):
        _make = twice(lambda kind=_kind: Weight(vector()) if kind is Weight else of(kind))
        programs.add(f"{_program.__name__}_{_kind.__name__}", lambda program=_program: program, _make, False)


@programs.made(*twice(lambda: of(Logged)))
def calls_that_are_logged():
    SEEN.clear()

    def program(x):
        y = torch.sin(x + 1)
        y += x
        y[0] = 3
        z = functional.softmax(y, -1)
        return z, x.shape, y.T.shape, list(SEEN)

    return program


@programs(*twice(lambda: of(Logged).requires_grad_()))
def class_with_gradients(x):
    return (x * x).sum(), x.requires_grad


@programs(*twice(lambda: of(Measured, unit="m")))
def attribute_handed_on(x):
    y = x * x
    return y, y.unit, y.named(), y.halved, torch.sin(y).unit


@programs(*twice(lambda: of(Measured, unit="m")), (lambda: (of(Measured, unit="s"),)))
def attribute_that_differs(x):
    return x + 1 if x.unit == "m" else x - 1


@programs
def made_inside(x):
    y = x.as_subclass(Measured)
    y.unit = "kg"
    return y, y + y, type(y + 1)


@programs(*twice(lambda: of(Shouting)), breaks=True)
def methods_of_its_own(x):
    return x.relu(), x.sin(), x + 1


@programs(*((lambda: (of(Plain), of(Logged))),) * 2, breaks=True)
def two_classes_that_know_nothing_of_each_other(a, b):
    try:
        return a + b
    except TypeError as error:
        return str(error)


@programs(*((lambda: (Diagonal(2, 3.0), vector())),) * 2)
def no_tensor(d, x):
    return torch.mean(d), torch.add(d, 1).value, torch.add(d, d).value, torch.add(x, d), functional.relu(d).value


@programs(*((lambda: (Diagonal(2, 3.0),)),) * 2)
def function_that_is_not_implemented(d):
    try:
        return torch.sin(d)
    except TypeError as error:
        return str(error)


@programs
def attribute_of_a_new_tensor(x):
    y = x + 1
    y.note = [1, "two"]
    z = y * 2
    z.of = y
    return y, z, y.note


@programs(*((lambda: (of(Plain, note=3),)),) * 2, breaks=True)
def namespace_of_a_tensor(x):
    return dict(x.__dict__), vars(x)["note"]


@programs
def mode_inside(x):
    with Doubling() as mode:
        y = torch.add(x, 1)
        z = x + 1
        shape = x.shape
        r = functional.relu(y - 5)
        w = y[1:3]
    return y + 1, z, shape, mode.names, r, w


@programs
def modes_in_modes(x):
    with Doubling() as outer, Doubling(torch.sin) as inner:
        y = torch.sin(torch.add(x, 1))
    return y, outer.names, inner.names


@programs
def mode_that_is_left_by_an_exception(x):
    try:
        with Doubling() as mode:
            x = torch.add(x, 1)
            raise KeyError("left")
    except KeyError:
        pass
    return torch.add(x, 1), mode.names


@programs(breaks=True)
def mode_around_an_exit(x):
    with Doubling() as mode:
        y = torch.add(x, 1)
        print("in between")
        y = torch.add(y, 1)
    return torch.add(y, 1), mode.names


@programs(breaks=True)
def mode_that_prints(x):
    class Printing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            print(name_of(func))
            return func(*args, **(kwargs or {}))

    with Printing():
        return torch.add(x, 1) * 2


@programs(*twice(lambda: of(Logged)))
def mode_and_class(x):
    SEEN.clear()
    with Doubling() as mode:
        y = torch.add(x, 1)
    return y, mode.names, list(SEEN)


@programs
def factories_under_a_mode(x):
    with Doubling(torch.ones) as mode:
        y = torch.ones(6) + torch.zeros(6)
    return x + y, mode.names


@programs.made()
def mode_around_the_call():
    mode = Doubling()

    def program(x):
        return torch.add(x, 1), torch.mul(x, 2), list(mode.names)

    def run(x):
        mode.names.clear()
        with mode:
            return program(x)

    return run


@programs.made()
def mode_that_changes_nothing_around_the_call():
    mode = Nothing()

    def program(x):
        y = x
        for _ in range(3):
            y = functional.gelu(y * 2)
        return y.sum()

    def run(x):
        with mode:
            return program(x), program(x)

    return run
