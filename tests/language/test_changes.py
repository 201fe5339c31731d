"""Programs called several times, with what they read changed in between: eager's results, whatever is changed.

A row of changed_*_programs.py takes `start` and makes its own state (tests/scenario.py)."""

from __future__ import annotations

import warnings

import changed_callbacks_programs
import changed_calls_programs
import changed_classes_programs
import changed_containers_programs
import changed_deletions_programs
import changed_facts_programs
import changed_flow_programs
import changed_library_programs
import changed_methods_programs
import changed_modules_programs
import changed_objects_programs
import changed_orders_programs
import changed_questions_programs
import changed_state_programs
import changed_tensors_programs
import changed_training_programs
import changed_unseen_programs
import changed_views_programs
import pytest
from scenario import observe, same

import magneto
from magneto import _test_settings

FILES = {
    "unseen": changed_unseen_programs,
    "objects": changed_objects_programs,
    "callbacks": changed_callbacks_programs,
    "calls": changed_calls_programs,
    "containers": changed_containers_programs,
    "deletions": changed_deletions_programs,
    "methods": changed_methods_programs,
    "orders": changed_orders_programs,
    "tensors": changed_tensors_programs,
    "training": changed_training_programs,
    "state": changed_state_programs,
    "facts": changed_facts_programs,
    "flow": changed_flow_programs,
    "classes": changed_classes_programs,
    "library": changed_library_programs,
    "modules": changed_modules_programs,
    "questions": changed_questions_programs,
    "views": changed_views_programs,
}
CASES = [
    pytest.param(scenario, id=f"{file}-{name}")
    for file, module in FILES.items()
    for name, (scenario, _) in module.scenario.scenarios.items()
]
WAYS = [("eager", None, 0), ("magneto", None, 0), ("magneto", True, 0), ("aot_eager", None, 1), ("aot_eager", None, 3)]


@pytest.mark.parametrize(("backend", "dynamic", "every"), WAYS)
@pytest.mark.parametrize("scenario", CASES)
def test_program(scenario, backend: str, dynamic: bool | None, every: int) -> None:  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = observe(scenario, None)
        magneto.reset()
        with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
            actual = observe(scenario, lambda function: magneto.compile(function, backend=backend, dynamic=dynamic))
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert same(left, right, backend), f"call {index + 1}:\n{left}\ninstead of\n{right}"
