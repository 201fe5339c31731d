"""Settings for Magneto's own tests: they make it fail, or slow. `with _test_settings.patch(exit_every=1): ...`"""

from __future__ import annotations

from collections.abc import Mapping

from magneto._setting import Patch, Setting, Settings

SETTINGS: Mapping[str, Setting] = {
    "fail_stage": Setting("", "That stage of compiles fails with an internal error."),
    "exit_every": Setting(0, "Each segment ends after so many instructions, where it can; 0: only where it must.", 0),
    "interpret_kernels": Setting(
        False,
        "Fused kernels run in the slow interpreter of the loop IR instead of machine code.",
        environment="MAGNETO_INTERPRET_KERNELS",
    ),
    "max_autotune_takes": Setting(
        -1, "The alternative of this number is taken, whatever was measured; -1: the fastest.", -1
    ),
}

_settings = Settings("_test_settings", SETTINGS)


class patch(Patch):
    """As `magneto.config.patch`."""

    _of = _settings
