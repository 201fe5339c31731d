"""All programs of this folder, compiled, against eager: plainly, with all sizes and numbers of their inputs symbols, with
an exit forced after every n-th instruction."""

from __future__ import annotations

from typing import Any

import arguments_programs
import classes_programs
import context_programs
import coroutine_programs
import flow_programs
import made_classes_programs
import made_layers_programs
import modules_programs
import numpy_programs
import pytest
import raising_programs
import readers_programs
import standard_programs
import subclasses_programs
import torch_function_programs
import torch_programs
import types_programs
import users_programs
import weak_programs
from programs import Programs
from scenario import Scenario, check
from tiers import ways_of

FILES: dict[str, Programs] = {
    "flow": flow_programs.programs,
    "raising": raising_programs.programs,
    "types": types_programs.programs,
    "classes": classes_programs.programs,
    "made_classes": made_classes_programs.programs,
    "made_layers": made_layers_programs.programs,
    "numpy": numpy_programs.programs,
    "modules": modules_programs.programs,
    "arguments": arguments_programs.programs,
    "standard": standard_programs.programs,
    "subclasses": subclasses_programs.programs,
    "readers": readers_programs.programs,
    "torch": torch_programs.programs,
    "torch_function": torch_function_programs.programs,
    "users": users_programs.programs,
    "context": context_programs.programs,
    "coroutines": coroutine_programs.programs,
    "weak": weak_programs.programs,
}

# How a program is compiled. Plainly always; each of the others in `make test-all`, two of them in `make test`.
PLAIN = "magneto"
WAYS: dict[str, dict[str, Any]] = {
    "magneto": {"backend": "magneto"},
    "eager": {"backend": "eager"},
    "symbols": {"backend": "magneto", "dynamic": True},
    "symbols-aot_eager": {"backend": "aot_eager", "dynamic": True},
    **{f"exits-{every}": {"backend": "aot_eager", "every": every} for every in (1, 2, 3, 7)},
}

CASES = [
    pytest.param(scenario, breaks, way, id=f"{file}-{name}-{way}", marks=marks)
    for file, table in FILES.items()
    for name, (scenario, breaks) in table.scenarios.items()
    for way, marks in ways_of(f"{file}-{name}", [PLAIN], [way for way in WAYS if way != PLAIN])
]


@pytest.mark.parametrize(("scenario", "breaks", "way"), CASES)
def test_program(scenario: Scenario, breaks: bool, way: str) -> None:
    check(scenario, breaks, **WAYS[way])
