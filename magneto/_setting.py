"""What a setting is: magneto/config.py has the users', magneto/_test_settings.py those of Magneto's own tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.utils._config_module import ContextDecorator  # also of classes of tests

from magneto import _C, exc


@dataclass(frozen=True)
class Setting:
    """One row of the table (src/support/settings.def)."""

    default: bool | int | float | str
    doc: str
    minimum: float | None = None  # for numbers
    use: str = "process"  # "callable": an option of one compiled callable as well; "tests": for tests of Magneto
    environment: str = ""  # a variable that changes the default: "1" and "0" for bool, text for str
    torch: tuple[str, ...] = ()  # the settings of PyTorch that it is: "dynamo.recompile_limit"


# Of settings that can have few values only.
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "repro_after": ("", "dynamo", "aot"),
    "repro_level": (1, 2, 3, 4),
    "verify": ("", "sample", "all"),
}


def rows() -> dict[str, Setting]:
    """The whole table."""
    return {
        name: Setting(default, doc, minimum, use, environment, tuple(torch.split()))
        for name, default, minimum, use, environment, torch, doc in _C.setting_rows()
    }


def torch_names(setting: Setting) -> list[str]:
    """The settings of PyTorch's modules that it is, by their whole names."""
    return [f"torch._{module}.config.{name}" for module, _, name in (alias.partition(".") for alias in setting.torch)]


class Settings:
    """A table with values; the core is told of each change."""

    def __init__(self, prefix: str, table: Mapping[str, Setting]) -> None:
        self.prefix = prefix
        self.table = table
        self.values: dict[str, Any] = {}
        for name, setting in table.items():
            self.assign(name, _initial(setting))

    def row(self, name: str) -> Setting:
        """Raises `InvalidSetting` for an unknown name."""
        setting = self.table.get(name)
        if setting is None:
            raise exc.InvalidSetting("setting", name, self.table)
        return setting

    def check(self, name: str, value: Any) -> None:
        """Raises `InvalidSetting` for an unknown name and `InvalidValue` for a value that the setting can't have."""
        setting = self.row(name)
        kind = type(setting.default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise exc.InvalidValue(
                f"{self.prefix}.{name} takes {kind.__name__}, not {value!r} ({type(value).__name__})"
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(map(repr, _CHOICES[name]))
            raise exc.InvalidValue(f"{self.prefix}.{name} is one of {choices}, not {value!r}")
        if setting.minimum is not None and not float(value) >= setting.minimum:  # NaN is not, either
            raise exc.InvalidValue(f"{self.prefix}.{name} must be at least {setting.minimum:g}, not {value}")

    def assign(self, name: str, value: Any) -> None:
        """Raises as `check` does."""
        self.check(name, value)
        _C.set_config(name, value)
        self.values[name] = value


def _initial(setting: Setting) -> bool | int | float | str:
    text = os.environ.get(setting.environment) if setting.environment else None
    if text is None:
        return setting.default
    if isinstance(setting.default, str):
        return text
    if type(setting.default) in (int, float):
        try:
            return type(setting.default)(text)
        except ValueError:
            raise exc.InvalidValue(
                f"The environment variable {setting.environment} must be a number, not {text!r}"
            ) from None
    if text not in ("0", "1"):
        raise exc.InvalidValue(f"The environment variable {setting.environment} must be 0 or 1, not {text!r}")
    return text == "1"


def changes(first: Any, value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `patch` is to change: it takes a dict, or a name and a value, and keywords."""
    if isinstance(first, str):
        return {first: value, **settings}
    if first is None or isinstance(first, Mapping):
        return {**(first or {}), **settings}
    raise exc.InvalidValue(f"config.patch takes a dict, a name and a value, or keywords, not {first!r}")


class Patch(ContextDecorator):
    """Changes settings for a `with` block, for the calls of a decorated function, or for the tests of a class.

    Takes keyword arguments, a dict, or a name and a value.
    """

    _of: ClassVar[Settings]

    def __init__(self, first: Mapping[str, Any] | str | None = None, value: Any = None, **settings: Any) -> None:
        self._changes = changes(first, value, settings)
        for name, new in self._changes.items():
            self._of.check(name, new)
        self._previous: list[dict[str, Any]] = []

    def __enter__(self) -> Patch:  # type: ignore[override]
        self._previous.append({name: self._of.values[name] for name in self._changes})
        for name, value in self._changes.items():
            self._of.assign(name, value)
        return self

    def __exit__(self, *exception: object) -> None:  # type: ignore[override]
        for name, value in self._previous.pop().items():
            self._of.assign(name, value)
