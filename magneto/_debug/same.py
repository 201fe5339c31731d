"""Whether compiled results are eager's, measured by what eager itself is off by.

Eager runs a second time in float64, with the same random numbers. How far eager's own dtype is from that is the noise
of the computation; compiled results may be as far off as that, and a little more, because they round elsewhere. No
fixed tolerance can do it: a softmax over a million elements and a sum of two differ by orders of magnitude.

One run of eager may be near float64 by luck, above all where terms cancel: the gradient of a bias before a softmax is
zero but for rounding. So before a difference is told, eager runs on inputs that are a unit of the last place off, some
times: how far that moves its results is noise, too.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from magneto import config
from magneto._debug import errors

# Compiled results may be so many times as far from float64's as eager's, and so many units of the dtype's last place of
# the largest value more: where eager happens to be exact, another order of additions is not.
TIMES, UNITS = 4.0, 16.0
# So many times eager runs on inputs that are a unit of the last place off, where compiled results are no further off
# than so many times what is allowed: no noise explains more.
NUDGES, CLOSE = 3, 1000.0

NUMERICS, NAN, WRONG, STRUCTURE = "beyond rounding", "NaN or infinity", "wrong result", "other structure"


@dataclass(frozen=True)
class Difference:
    """One result that is not eager's."""

    where: str  # "result 0", "gradient of input 1"
    kind: str
    text: str
    allowed: float = 0.0  # errors up to here are none
    times: float = math.inf  # so many times what is allowed
    errors: dict[str, Any] | None = field(default=None, compare=False, repr=False)  # errors.distribution

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.text}"

    def data(self) -> dict[str, Any]:
        """Of JSON's types."""
        return {"where": self.where, "difference": self.kind, "text": self.text, "errors": self.errors}


def clone_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Copies with the same strides that are leaves and require gradients as the originals do."""
    copies: list[Any] = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            with torch.no_grad():
                copies.append(_copy(x).requires_grad_(x.requires_grad))
        else:
            copies.append(x)
    return copies


def _copy(x: torch.Tensor) -> torch.Tensor:
    """With the same strides. Elements that stand for many, as `expand` makes them, are written once."""
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    part, of = y, x.detach()
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            part, of = part.narrow(dim, 0, 1), of.narrow(dim, 0, 1)
    try:
        part.copy_(of)
    except RuntimeError:  # elements share memory in another way, as `unfold` makes them
        return x.detach().clone()
    return y


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors(getattr(value, name))


def parameters_of(fn: Any) -> list[tuple[str, torch.Tensor]]:
    """Of a module, compiled or not, or of the module that a method belongs to."""
    fn = getattr(fn, "_orig_mod", getattr(fn, "_torchdynamo_orig_callable", fn))
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    return list(module.named_parameters()) if isinstance(module, torch.nn.Module) else []


def results(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    only_forward: bool = False,
    parameters: Sequence[tuple[str, torch.Tensor]] | None = None,
) -> dict[str, torch.Tensor]:
    """All that a call leaves behind, by name: results, written inputs, and the gradients of a loss that all results
    take part in. The inputs stay as they are. `parameters`: None: of `fn`."""
    own = clone_inputs(inputs)
    parameters = parameters_of(fn) if parameters is None else parameters
    for _, parameter in parameters:
        parameter.grad = None
    versions = [x._version if isinstance(x, torch.Tensor) else 0 for x in own]
    out = fn(*own)
    found = {f"result {i}": x for i, x in enumerate(tensors(out))}
    losses = [_loss(x) for x in found.values() if x.requires_grad]
    if losses and not only_forward:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        for i, x in enumerate(own):
            if isinstance(x, torch.Tensor) and x.grad is not None:
                found[f"gradient of input {i}"] = x.grad
        for name, parameter in parameters:
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad
    for i, (version, x) in enumerate(zip(versions, own, strict=True)):
        if isinstance(x, torch.Tensor) and (x._version != version or _differ(x, inputs[i])):
            found[_afterwards(i)] = x
    return {name: x.detach() for name, x in found.items()}


def _afterwards(place: int) -> str:
    return f"input {place} afterwards"


def _differ(x: torch.Tensor, y: torch.Tensor) -> bool:
    """A write through `x.data` leaves no trace but the values."""
    if x.layout != torch.strided or x.is_quantized:
        return False
    return not torch.equal(x, y) and not bool(((x == y) | ((x != x) & (y != y))).all())


def _loss(x: torch.Tensor) -> torch.Tensor:
    """A number that each element moves otherwise, so that no gradient cancels another."""
    flat = x.reshape(-1)
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    weights = torch.linspace(0.5, 1.5, max(real.numel(), 1), dtype=torch.float64, device=x.device)[: real.numel()]
    return (real * weights.to(real.dtype)).sum().to(torch.float64)


def copy_of(model: Any) -> Any:
    """A deep copy; scripted functions, which have none, stay."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else []
    attributes = [x for module in modules for x in vars(module).values()]
    scripted = [x for x in attributes if isinstance(x, torch.jit.ScriptFunction)]
    return copy.deepcopy(model, {id(x): x for x in scripted})


def cast_to(dtype: torch.dtype, model: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The model and its inputs in another floating dtype. Graphs that name a dtype name the other one."""
    model = copy_of(model)
    if isinstance(model, torch.nn.Module):
        model = model.to(dtype)
    if isinstance(model, torch.fx.GraphModule):
        _cast_arguments(model, dtype)
    cast = [
        x.detach().clone().to(dtype).requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in inputs
    ]
    return model, cast


def nudged(model: Any, inputs: Sequence[Any], seed: int = 0) -> tuple[Any, list[Any]]:
    """The model and its inputs with each number a unit of the last place off, up or down by `seed`: what that changes
    is noise, too."""
    model, inputs = copy_of(model), clone_inputs(inputs)
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    with torch.no_grad():
        for x in [*inputs, *parameters]:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and 0 not in x.stride():
                signs = torch.randint(2, x.shape, generator=generator) * 2 - 1
                x.mul_((1 + torch.finfo(x.dtype).eps * signs.to(x.device)).to(x.dtype))
    return model, inputs


def cast_to_fp64(model: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """`cast_to` float64."""
    return cast_to(torch.float64, model, inputs)


def _cast_arguments(module: torch.fx.GraphModule, dtype: torch.dtype) -> None:
    """In place, for calls such as `x.to(torch.float32)`, `torch.zeros(..., dtype=torch.bfloat16)`, `x.float()`."""

    def other(value: Any) -> Any:
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    names = {"float": "double", "half": "double", "bfloat16": "double"} if dtype == torch.float64 else {}
    for node in module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            node.args = torch.fx.node.map_aggregate(node.args, other)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, other)
        if node.op == "call_method":
            node.target = names.get(node.target, node.target)
    module.recompile()


def compare(
    reference: dict[str, torch.Tensor],
    compiled: dict[str, torch.Tensor],
    exact: dict[str, torch.Tensor] | None,
    ignore_integers: bool = False,
    tolerance: float | None = None,
    slack: float = 1.0,
    moved: Sequence[dict[str, torch.Tensor]] = (),
) -> list[Difference]:
    """What differs. `exact`: eager in float64, where it runs; else `tolerance` and the dtype's rounding decide. A
    `tolerance` above the setting's default is somebody's wish, and allowed in any case.
    `slack`: results may be so many times as far off as that allows. `moved`: eager on inputs nearby (`nudged`)."""
    if reference.keys() != compiled.keys():
        missing = [name for name in reference if name not in compiled]
        added = [name for name in compiled if name not in reference]
        text = f"{', '.join(missing) or 'nothing'} is missing, {', '.join(added) or 'nothing'} is there that should not"
        return [Difference(", ".join(missing or added), STRUCTURE, text)]
    found: list[Difference] = []
    for name, want in reference.items():
        truth = (exact or {}).get(name)
        near = [run[name] for run in moved if name in run]
        difference = _compare_one(name, want, compiled[name], truth, ignore_integers, tolerance, slack, near)
        if difference is not None and difference.kind != STRUCTURE and not found:  # the first is what is shown
            sizes = errors.distribution(want, compiled[name], truth, difference.allowed)
            difference = replace(difference, errors=sizes)
        if difference is not None:
            found.append(difference)
    return found


def _compare_one(
    name: str,
    want: torch.Tensor,
    got: torch.Tensor,
    exact: torch.Tensor | None,
    ignore_integers: bool,
    tolerance: float | None,
    slack: float,
    near: list[torch.Tensor],
) -> Difference | None:
    if (want.dtype, want.shape, want.device) != (got.dtype, got.shape, got.device):
        return Difference(name, STRUCTURE, f"{_kind(got)}, in eager {_kind(want)}")
    if want.layout != torch.strided or want.is_quantized:
        want, got, exact = want.to_dense(), got.to_dense(), None
    if want.is_complex():
        want, got = torch.view_as_real(want), torch.view_as_real(got)
        exact = torch.view_as_real(exact) if exact is not None and exact.is_complex() else None
        near = [torch.view_as_real(x) for x in near]
    if not want.is_floating_point():
        if ignore_integers or torch.equal(want, got):
            return None
        return _compare_integers(name, want, got, exact)
    if want.numel() == 0:
        return None
    if exact is not None and (exact.shape != want.shape or not exact.is_floating_point()):
        exact = None
    near = [x.double() for x in near if x.shape == want.shape]
    eps = torch.finfo(want.dtype).eps
    return _compare_floats(name, want.double(), got.double(), exact, eps, tolerance, slack, near)


def _kind(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"


def _compare_integers(
    name: str, want: torch.Tensor, got: torch.Tensor, exact: torch.Tensor | None
) -> Difference | None:
    """A number that float64 decides otherwise than eager was close to the border: so may compiled code."""
    wrong = int((want != got).sum())
    if exact is not None and exact.shape == want.shape and wrong <= 2 * int((want != exact).sum()):
        return None
    at = (want != got).nonzero()[0].tolist()
    return Difference(name, WRONG, f"{wrong} of {want.numel()} values; at {at} {got[tuple(at)]}, not {want[tuple(at)]}")


def _compare_floats(
    name: str,
    want: torch.Tensor,
    got: torch.Tensor,
    exact: torch.Tensor | None,
    eps: float,
    tolerance: float | None,
    slack: float,
    near: list[torch.Tensor],
) -> Difference | None:
    odd = (want.isnan() != got.isnan()) | ((want.isinf() | got.isinf()) & (want != got) & ~want.isnan())
    if exact is not None:
        # What overflows in eager's dtype need not in another order of operations, or comes to infinity and not to NaN.
        odd &= ~(exact.isfinite() & ~want.isfinite())
    if bool(odd.any()):
        at = tuple(odd.nonzero()[0].tolist())
        return Difference(
            name, NAN, f"{int(odd.sum())} of {want.numel()} values; at {list(at)} {got[at]}, not {want[at]}"
        )
    usable = want.isfinite() & got.isfinite()
    if exact is not None:
        usable &= exact.isfinite()
    if not bool(usable.any()):
        return None
    near = [x[usable] for x in near]
    want, got = want[usable], got[usable]
    truth = exact.double()[usable] if exact is not None else want
    scale = float(truth.abs().max())
    error = (got - truth).abs()
    noises = [(want - x).abs() for x in (truth, *near) if bool(x.isfinite().all())]
    noise, noise_mean = max(float(x.max()) for x in noises), max(float(x.square().mean().sqrt()) for x in noises)
    rounding = UNITS * eps * scale
    if exact is None or (tolerance is not None and tolerance > float(config.SETTINGS["repro_tolerance"].default)):
        rounding = max(rounding, (tolerance if tolerance is not None else 64 * eps) * scale)
    allowed = slack * (TIMES * noise + rounding)
    allowed_mean = slack * (TIMES * noise_mean + rounding / 4)
    worst, mean = float(error.max()), float(error.square().mean().sqrt())
    if worst <= allowed and mean <= allowed_mean:
        return None
    share = float((error > allowed).double().mean())
    text = f"off by up to {worst:.3g} (eager by {noise:.3g}, allowed {allowed:.3g}), {share:.1%} of values"
    times = max(worst / max(allowed, 1e-300), mean / max(allowed_mean, 1e-300))
    kind = NUMERICS if worst <= 100 * allowed and worst < 0.01 * max(scale, 1e-300) else WRONG
    return Difference(name, kind, text, allowed, times)


def differences(
    model: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: Sequence[Any],
    only_forward: bool = False,
    *,
    require_fp64: bool = False,
    ignore_integers: bool = False,
    use_fp64: bool = True,
    tolerance: float | None = None,
) -> list[Difference]:
    """Runs both, and eager in float64, with the same random numbers."""
    state = torch.get_rng_state()
    reference = results(model, inputs, only_forward)
    after, exact = torch.get_rng_state(), None
    if use_fp64:
        torch.set_rng_state(state)
        try:
            exact = results(*cast_to_fp64(model, clone_inputs(inputs)), only_forward)
        except Exception:
            if require_fp64:
                raise
        drawn = torch.get_rng_state()
    if use_fp64 and not torch.equal(after, drawn):
        # It drew more: random numbers of float64 are others than those of eager's dtype. (Masks of dropout are not.)
        torch.set_rng_state(state)
        exact = results(*nudged(model, inputs), only_forward)
    torch.set_rng_state(state)
    got = results(compiled, inputs, only_forward, parameters_of(compiled) or parameters_of(model))
    for i, x in enumerate(inputs):  # a write that changes no value counts for some, and not for others
        if (_afterwards(i) in reference) != (_afterwards(i) in got):
            reference.setdefault(_afterwards(i), x.detach())
            got.setdefault(_afterwards(i), x.detach())
    found = compare(reference, got, exact, ignore_integers, tolerance)
    if any(difference.times <= CLOSE for difference in found):
        moved = []
        for seed in range(NUDGES):
            torch.set_rng_state(state)
            with contextlib.suppress(Exception):  # a program may refuse them
                moved.append(results(*nudged(model, inputs, seed), only_forward))
        found = compare(reference, got, exact, ignore_integers, tolerance, moved=moved)
    return found
