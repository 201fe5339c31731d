"""All programs of this folder, compiled, against eager."""

from __future__ import annotations

import arguments_programs
import classes_programs
import flow_programs
import modules_programs
import numpy_programs
import pytest
import raising_programs
import readers_programs
import standard_programs
import torch_function_programs
import torch_programs
import types_programs
import users_programs
from programs import Programs
from scenario import BACKENDS, check

FILES: dict[str, Programs] = {
    "flow": flow_programs.programs,
    "raising": raising_programs.programs,
    "types": types_programs.programs,
    "classes": classes_programs.programs,
    "numpy": numpy_programs.programs,
    "modules": modules_programs.programs,
    "arguments": arguments_programs.programs,
    "standard": standard_programs.programs,
    "readers": readers_programs.programs,
    "torch": torch_programs.programs,
    "torch_function": torch_function_programs.programs,
    "users": users_programs.programs,
}

CASES = [
    pytest.param(*case, id=f"{file}-{name}") for file, table in FILES.items() for name, case in table.scenarios.items()
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("scenario", "breaks"), CASES)
def test_program(scenario, breaks: bool, backend: str) -> None:  # type: ignore[no-untyped-def]
    check(scenario, breaks, backend=backend)
