"""All scripts of this folder, compiled, against eager."""

from __future__ import annotations

import agents_scripts
import data_scripts
import gradients_scripts
import inference_scripts
import loops_scripts
import losses_scripts
import numerics_scripts
import pytest
import sampling_scripts
import sequences_scripts
import structures_scripts
import training_scripts
from compare import Closeness
from scripts import Script, Scripts, check

FILES: dict[str, Scripts] = {
    "training": training_scripts.scripts,
    "agents": agents_scripts.scripts,
    "gradients": gradients_scripts.scripts,
    "sampling": sampling_scripts.scripts,
    "sequences": sequences_scripts.scripts,
    "losses": losses_scripts.scripts,
    "structures": structures_scripts.scripts,
    "loops": loops_scripts.scripts,
    "inference": inference_scripts.scripts,
    "data": data_scripts.scripts,
    "numerics": numerics_scripts.scripts,
}

CASES = [
    pytest.param(*case, id=f"{file}-{name}") for file, table in FILES.items() for name, case in table.scripts.items()
]


@pytest.mark.parametrize(("script", "closeness"), CASES)
def test_script(script: Script, closeness: Closeness) -> None:
    check(script, closeness)
