"""Programs called several times, with what they read changed in between: eager's results, whatever is changed.

A row of changed_*_programs.py takes `start` and makes its own state (tests/scenario.py)."""

from __future__ import annotations

import warnings
from typing import Any

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
from scenario import Scenario, check
from tiers import ways_of

import magneto

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
# How a program is compiled. Plainly always; each of the others in `make test-all`, one of them in `make test`.
PLAIN = "magneto"
WAYS: dict[str, dict[str, Any]] = {
    "magneto": {"backend": "magneto"},
    "eager": {"backend": "eager"},
    "symbols": {"backend": "magneto", "dynamic": True},
    **{f"exits-{every}": {"backend": "aot_eager", "every": every} for every in (1, 3)},
}

CASES = [
    pytest.param(scenario, way, id=f"{file}-{name}-{way}", marks=marks)
    for file, module in FILES.items()
    for name, (scenario, _) in module.scenario.scenarios.items()
    for way, marks in ways_of(f"{file}-{name}", [PLAIN], [way for way in WAYS if way != PLAIN], count=1)
]


@pytest.mark.parametrize(("scenario", "way"), CASES)
def test_program(scenario: Scenario, way: str) -> None:
    with warnings.catch_warnings(), magneto.config.patch(cache_size_limit=1000):
        warnings.simplefilter("ignore")
        check(scenario, breaks=True, **WAYS[way])
