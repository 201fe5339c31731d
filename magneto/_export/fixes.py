"""What a program asks of sizes that `torch.export.Dim` named, beyond what was said of them: an error with suggestions.

Sizes that are `Dim.DYNAMIC` or `Dim.AUTO` have the ranges and relations that the program gives them; a name promises
that all sizes of its range are fine, and that it is bound to no other name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from magneto import exc
from magneto._export import arguments

Place = tuple[str, int]  # an argument, a dimension

_SIZE = r"L\['(\w+)'\]\.size\(\)\[(\d+)\]"
_RANGE = re.compile(rf"(?:(\d+) <= )?{_SIZE}(?: <= (\d+))?")
_RELATION = re.compile(rf"{_SIZE} == (?:(\d+)\*)?{_SIZE}(?: ([+-]) (\d+))?")
_MULTIPLE = re.compile(rf"{_SIZE}%(\d+) == 0")
_SMALLEST = 2  # sizes of 0 and 1 are other programs, whatever is said
_ANY = 1 << 40


class _Fixes(NamedTuple):
    names: dict[Place, str]
    problems: list[str]
    violated: dict[str, None]
    bounds: dict[str, list[int | None]]  # of a name: least, most
    others: dict[str, str]  # of a name: what it is to be

    def violate(self, name: str, problem: str) -> None:
        self.violated[name] = None
        self.problems.append(problem)


def check(sizes: arguments.Sizes, conditions: Sequence[str]) -> None:
    """Raises ConstraintViolation where a condition of the program does not follow from what the names say."""
    declared = sizes.by_dimension()
    names = {place: bounds[0] for place, bounds in declared.items() if bounds[0].isidentifier()}
    fixes = _Fixes(names, [], {}, {}, {})
    known = set(sizes.relations())
    for text in dict.fromkeys(part for condition in conditions for part in condition.split(" and ")):
        if text in known:
            continue
        if found := _RANGE.fullmatch(text):
            _of_range(fixes, declared, found)
        elif found := _RELATION.fullmatch(text):
            _of_relation(fixes, found)
        elif (found := _MULTIPLE.fullmatch(text)) and (name := names.get((found[1], int(found[2])))):
            where = f"{name} = {_text(found[1], found[2])}"
            fixes.violate(name, f"Not all values of {where} in the specified range satisfy the generated guard {text}")
            fixes.others.setdefault(name, f"{found[3]}*_{name}")
    if fixes.problems:
        raise exc.ConstraintViolation(_message(fixes))


def of_constant(violation: exc.ConstraintViolation, sizes: arguments.Sizes) -> exc.ConstraintViolation:
    """The core's error for a size that has one value alone, with the suggestion to say so."""
    found = re.match(
        rf"{_SIZE} was marked as dynamic, but the program is valid for the size (\d+) alone", str(violation)
    )
    bounds = sizes.by_dimension().get((found[1], int(found[2]))) if found else None
    if not found or not bounds or not bounds[0].isidentifier():
        return violation
    return exc.ConstraintViolation(f"{violation}\n\nSuggested fixes:\n  {bounds[0]} = {found[3]}")


def _text(leaf: str, dim: str) -> str:
    return f"L['{leaf}'].size()[{dim}]"


def _of_range(fixes: _Fixes, declared: dict[Place, arguments.Bounds], found: re.Match[str]) -> None:
    place = found[2], int(found[3])
    name = fixes.names.get(place)
    if name is None:
        return
    _, low, high = declared[place]
    least = int(found[1]) if found[1] and int(found[1]) > max(low or 0, _SMALLEST) else None
    most = int(found[4]) if found[4] and int(found[4]) < min(high or _ANY, _ANY) else None
    if least is None and most is None:
        return
    where = f"{name} = {_text(found[2], found[3])}"
    fixes.violate(name, f"Not all values of {where} in the specified range satisfy the generated guard {found[0]}")
    bounds = fixes.bounds.setdefault(name, [low if low and low > _SMALLEST else None, high])
    bounds[0] = bounds[0] if least is None else max(least, bounds[0] or 0)
    bounds[1] = bounds[1] if most is None else min(most, bounds[1] or _ANY)


def _of_relation(fixes: _Fixes, found: re.Match[str]) -> None:
    first, second = fixes.names.get((found[1], int(found[2]))), fixes.names.get((found[4], int(found[5])))
    if first is None or second is None or first == second:
        return
    size, other = _text(found[1], found[2]), _text(found[4], found[5])
    factor, term = int(found[3] or 1), int(found[7] or 0) * (-1 if found[6] == "-" else 1)
    order = list(dict.fromkeys(fixes.names.values()))
    if factor == 1 and order.index(first) < order.index(second):
        first, second, size, other, term = second, first, other, size, -term
    if factor == 1 and term == 0:
        fixes.violate(first, f"The values of {first} = {size} and {second} = {other} must always be equal.")
        fixes.others[first] = second
        return
    expression = f"{factor}*{second}" if factor != 1 else second
    expression += f" {'+' if term > 0 else '-'} {abs(term)}" if term else ""
    fixes.violate(
        first,
        f"The values of {first} = {size} must always be related to the values of {second} = {other} by "
        f"{first} = {expression}.",
    )
    fixes.others[first] = expression


def _message(fixes: _Fixes) -> str:
    lines = [
        f'Constraints violated ({", ".join(fixes.violated)})! For more information, run with TORCH_LOGS="+dynamic".'
    ]
    lines += [f"  - {problem}" for problem in fixes.problems]
    lines += ["", "Suggested fixes:"]
    for name, (low, high) in fixes.bounds.items():
        if name not in fixes.others:
            said = [f"min={low}"] * (low is not None) + [f"max={high}"] * (high is not None)
            lines.append(f"  {name} = Dim({', '.join([repr(name), *said])})")
    for name, what in fixes.others.items():
        if what.endswith(f"*_{name}"):
            lines.append(f"  _{name} = Dim('_{name}')")
        lines.append(f"  {name} = {what}")
    return "\n".join(lines)
