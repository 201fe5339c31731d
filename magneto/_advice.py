"""What a guard that keeps failing stands for, and the one line that would stop it: a row for each kind of guard."""

from __future__ import annotations

import linecache
import re
from typing import NamedTuple

from magneto import _expressions

_SIZES = "mark it dynamic: torch._dynamo.mark_dynamic({name}, {index})"
_INT = "make it a tensor: {name} = torch.tensor({name}); or call with few different ones"
_SPECIALIZED = "pad it to one size: the program asks for its number"
_SIDE = "call with sizes on one side of it: the program asks which side it is on, or they are 0 and 1"
_RELATION = "call with sizes of which that holds, or of which it never does"
_BOUND = "call with numbers on one side of it: the program asks which side {name} is on"
_LOOP = "the loop is unrolled, a graph for each number of rounds: keep {name} the same, or compile only its body"
_BRANCH = "decide before the call: compile a function for each way that {name} takes"
_FIXED = "leave out dynamic=False: without it one capture serves all"
_GRAD = "nothing need: a capture each, with and without gradient; where none is wanted: torch.no_grad()"
_KIND = "make it in one mode: all in torch.inference_mode(), or none"
_MODES = "nothing need: train() and eval() have a capture each"
_KEYS = "use the same keys in all calls"
_DATA = "keep them in a tensor: no int(), no .item()"
_OBJECT = "move it out: make it once, outside of the loop, and use the same one"
_CLASS = "move it out: assign attributes of classes before the first call"
_ATTRIBUTE = "set {name}.{attribute} before the first call"


class Advice(NamedTuple):
    """What differs, and the one line that would stop it."""

    what: str
    remedy: str


# Behind the guards of functions that are compiled so (src/dispatch/report.cpp).
_UNDER = " under dynamic=False"

# Failed guards as src/guards words them, without the values that differ; what differs, and what would stop it.
_ROWS: tuple[tuple[str, str, str], ...] = (
    (r"tensor '(?P<name>.+)' size mismatch at index (?P<index>\d+)", "size {index} of {name}", _SIZES),
    (r"tensor '(?P<name>.+)' stride mismatch.*", "the strides of {name}", "{name} = {name}.contiguous()"),
    (r"tensor '(?P<name>.+)' rank mismatch", "the number of dimensions of {name}", "give it one shape: view()"),
    (r"tensor '(?P<name>.+)' dtype mismatch", "the dtype of {name}", "{name} = {name}.to(torch.float32)"),
    (r"tensor '(?P<name>.+)' device mismatch", "the device of {name}", "{name} = {name}.to(device)"),
    (r"tensor '(?P<name>.+)' requires_grad mismatch", "whether {name} requires grad", _GRAD),
    (r"tensor '(?P<name>.+)' dispatch key set mismatch", "the kind of tensor {name} is", _KIND),
    (r"expected type of '(?P<name>.+)' to be .*", "the type of {name}", "pass one type, as torch.Tensor"),
    (
        r"global state: (?P<what>.*?)(?: changed: was .*)?",
        "global state ({what})",
        "make all calls in the same modes, as under one torch.no_grad()",
    ),
    (r"len\((?P<name>.+)\) (?:==|>|<=) .*", "the length of {name}", "make it a tensor: torch.stack({name})"),
    (r"list\(dict\.keys\((?P<name>.+)\)\) == .*", "the keys of {name}", _KEYS),
    (r"___check_type_id\((?P<name>.+), .*\)", "the type of {name}", "pass one type in all calls"),
    (r"___check_tensor_data\((?P<name>.+), .*\)", "the numbers in {name}, which the capture reads", _DATA),
    (r"___check_(?:obj_id|function|method)\((?P<name>.+?), .*\)", "which object {name} is", _OBJECT),
    (r"_PyType_Lookup\((?P<type>.+), (?P<name>.+)\) is .*", "{name} of {type}", _CLASS),
    (
        r"check_no_aliasing\((?P<names>.+)\)",
        "whether some of {names} are one object",
        "pass different tensors, or clone()",
    ),
    (r"(?P<name>.+) is not (?P<other>.+)", "whether {name} is {other}", "pass different objects, or clone()"),
    (r"(?P<name>.+) is bound", "whether {name} is set", "set it before the first call"),
    (r"(?P<name>.+) is (?P<other>.+)", "whether {name} is {other}", "pass the same object in both places"),
    (
        r"(?:not )?hasattr\((?P<name>.+), '(?P<attribute>.+)'\)",
        "whether {name} has the attribute {attribute}",
        _ATTRIBUTE,
    ),
    (r"(?P<name>[^*+ ]+)\.size\(\)\[(?P<index>\d+)\] (?:==|!=) \d+", "size {index} of {name}", _SPECIALIZED),
    (r"(?P<low>-?\d+) <= (?P<name>[^*+ ]+)\.size\(\)\[(?P<index>\d+)\].*", "size {index} of {name}", _SIDE),
    (r"(?P<name>[^*+ ]+)\.size\(\)\[(?P<index>\d+)\] <= \d+", "size {index} of {name}", _SIDE),
    (r"(?P<relation>.*\.size\(\)\[\d+\].*)", "whether {relation}", _RELATION),
    (r"(?P<key>.+) not in (?P<name>.+)", "whether {key} is in {name}", _KEYS),
    (r"(?P<key>.+) in (?P<name>.+)", "whether {key} is in {name}", _KEYS),
    (r"(?:-?\d+) <= (?P<name>[^<]+)", "the value of {name}", _BOUND),
    (r"(?P<name>.+)\.training == .*", "whether {name} is in training mode", _MODES),
    (r"(?P<name>.+) (?:==|!=|<=) (?P<value>.*)", "the value of {name}", ""),
)


# As programs write what guards name: `L['self'].lr` is `self.lr`, `G['scale']` is `scale`.
_SPELT = (
    (r"\b[LG]\['(\w+)'\]", r"\1"),
    (r"\.__dict__\['(\w+)'\]", r".\1"),
    (r"\._(?:modules|parameters|buffers)\['(\d+)'\]", r"[\1]"),
    (r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1"),
    (r"___function\b", "the function"),
    (r"\.__closure__\[\d+\]\.cell_contents", ""),
)


def _readable(source: str) -> str:
    for pattern, spelt in _SPELT:
        source = re.sub(pattern, spelt, source)
    return source


def _of_value(name: str, value: str, line: str) -> str:
    """What to do about a constant depends on what it is, and on what the line that needs it does with it."""
    use = _expressions.use_of(name, line)
    if use == "loop":
        return _LOOP
    if use == "branch":
        return _BRANCH
    if re.fullmatch(r"-?\d+", value):
        return _INT
    if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|-?inf|nan", value):
        return "make it a tensor: {name} = torch.tensor({name})"
    return "move it out: one compiled function for each value of {name}"


def place_parts(place: str) -> tuple[str, int]:
    """File and line of "playground.py:6 in fn"; ("", 0) where it is not known."""
    found = re.fullmatch(r"(.*):(\d+) in \S+", place)
    return (found[1], int(found[2])) if found else ("", 0)


def advice(failure: str, needed_at: str = "") -> Advice:
    """`needed_at`: the line of the program that needs the guard, "playground.py:6 in fn"."""
    guard = re.sub(r"Eq\((.+), (.+)\)", r"\1 == \2", failure.removesuffix(_UNDER))
    line = linecache.getline(*place_parts(needed_at))
    for pattern, what, remedy in _ROWS:
        if found := re.fullmatch(pattern, guard, re.DOTALL):
            words = {name: _readable(text) for name, text in found.groupdict().items()}
            if remedy in ("", _BOUND):
                use = _of_value(words["name"], words.get("value", ""), line)
                remedy = use if not remedy or use in (_LOOP, _BRANCH) else remedy
            if failure.endswith(_UNDER) and remedy in (_SIZES, _INT):
                remedy = _FIXED
            return Advice(what.format(**words), remedy.format(**words))
    return Advice(_readable(guard), "move it out of the compiled function")
