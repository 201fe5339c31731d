"""Settings for Magneto's own tests: they make it fail, or slow. `with _test_settings.patch(exit_every=1): ...`"""

from __future__ import annotations

from collections.abc import Mapping

from magneto._setting import Patch, Setting, Settings, rows

SETTINGS: Mapping[str, Setting] = {name: row for name, row in rows().items() if row.use == "tests"}

_settings = Settings("_test_settings", SETTINGS)


class patch(Patch):
    """As `magneto.config.patch`."""

    _of = _settings
