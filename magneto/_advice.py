"""What a guard that keeps failing stands for, and the one line that would stop it: a row for each kind of guard."""

from __future__ import annotations

import re
from collections.abc import Callable

Words = dict[str, str]

_SIZES = "mark it dynamic: torch._dynamo.mark_dynamic({name}, {index})"


def _by_value(words: Words) -> tuple[str, str]:
    """A constant: what to do depends on what it is."""
    name, value = words["name"], words["value"]
    if re.fullmatch(r"-?\d+", value):
        remedy = f"make it a tensor: {name} = torch.tensor({name}); or call with few different ones"
    elif re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|-?inf|nan", value):
        remedy = f"make it a tensor: {name} = torch.tensor({name})"
    else:
        remedy = f"move it out: one compiled function for each value of {name}"
    return f"the value of {name}", remedy


def _fixed(what: str, remedy: str) -> Callable[[Words], tuple[str, str]]:
    return lambda words: (what.format(**words), remedy.format(**words))


# Failed guards as src/guards words them, without the values that differ.
_ROWS: tuple[tuple[str, Callable[[Words], tuple[str, str]]], ...] = (
    (
        r"tensor '(?P<name>.+)' size mismatch at index (?P<index>\d+)",
        _fixed("size {index} of {name}", _SIZES),
    ),
    (r"tensor '(?P<name>.+)' stride mismatch.*", _fixed("the strides of {name}", "{name} = {name}.contiguous()")),
    (r"tensor '(?P<name>.+)' rank mismatch", _fixed("the number of dimensions of {name}", "give it one shape: view()")),
    (r"tensor '(?P<name>.+)' dtype mismatch", _fixed("the dtype of {name}", "{name} = {name}.to(torch.float32)")),
    (r"tensor '(?P<name>.+)' device mismatch", _fixed("the device of {name}", "{name} = {name}.to(device)")),
    (
        r"tensor '(?P<name>.+)' requires_grad mismatch",
        _fixed("whether {name} requires grad", "{name} = {name}.detach(), or all calls under torch.no_grad()"),
    ),
    (
        r"tensor '(?P<name>.+)' dispatch key set mismatch",
        _fixed("the kind of tensor {name} is", "make it in one mode: all in torch.inference_mode(), or none"),
    ),
    (r"expected type of '(?P<name>.+)' to be .*", _fixed("the type of {name}", "pass one type, as torch.Tensor")),
    (
        r"global state: (?P<what>.*)",
        _fixed("global state ({what})", "make all calls in the same modes, as under one torch.no_grad()"),
    ),
    (r"len\((?P<name>.+)\) (?:==|>|<=) .*", _fixed("the length of {name}", "make it a tensor: torch.stack({name})")),
    (r"list\(dict\.keys\((?P<name>.+)\)\) == .*", _fixed("the keys of {name}", "use the same keys in all calls")),
    (r"___check_type_id\((?P<name>.+), .*\)", _fixed("the type of {name}", "pass one type in all calls")),
    (
        r"___check_tensor_data\((?P<name>.+), .*\)",
        _fixed("the numbers in {name}, which the capture reads", "keep them in a tensor: no int(), no .item()"),
    ),
    (
        r"___check_(?:obj_id|function|method)\((?P<name>.+), .*\)",
        _fixed("which object {name} is", "move it out: make it once, outside of the loop, and use the same one"),
    ),
    (
        r"_PyType_Lookup\((?P<type>.+), (?P<name>.+)\) is .*",
        _fixed("{name} of {type}", "move it out: assign attributes of classes before the first call"),
    ),
    (
        r"check_no_aliasing\((?P<names>.+)\)",
        _fixed("whether some of {names} are one object", "pass different tensors, or clone()"),
    ),
    (r"(?P<name>.+) is not (?P<other>.+)", _fixed("whether {name} is {other}", "pass different objects, or clone()")),
    (r"(?P<name>.+) is bound", _fixed("whether {name} is set", "set it before the first call")),
    (r"(?P<name>.+) is (?P<other>.+)", _fixed("whether {name} is {other}", "pass the same object in both places")),
    (
        r"(?:not )?hasattr\((?P<name>.+), '(?P<attribute>.+)'\)",
        _fixed("whether {name} has the attribute {attribute}", "set {name}.{attribute} before the first call"),
    ),
    (r"(?P<key>.+) not in (?P<name>.+)", _fixed("whether {key} is in {name}", "use the same keys in all calls")),
    (r"(?P<key>.+) in (?P<name>.+)", _fixed("whether {key} is in {name}", "use the same keys in all calls")),
    (r"(?P<name>.+) == (?P<value>.*)", _by_value),
)


def _readable(source: str) -> str:
    """`L['self'].lr` is `self.lr`, `G['scale']` is `scale`."""
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", source)


def advice(failure: str) -> tuple[str, str]:
    """What differs, and the one line that would stop it."""
    for pattern, words in _ROWS:
        if found := re.fullmatch(pattern, failure, re.DOTALL):
            return words({name: _readable(text) for name, text in found.groupdict().items()})
    return _readable(failure), "move it out of the compiled function"
