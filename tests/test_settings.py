"""The table of settings, and what follows from it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import fresh
import pytest
import torch

import magneto
from magneto import _C, _options, _test_settings
from magneto._install import settings

ROOT = Path(__file__).parents[1]
SETTINGS = magneto.config.SETTINGS


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "tools" / "settings_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_written_follows_the_table(tool: ModuleType) -> None:
    assert tool.PAGE.read_text() == tool.page(), "run: python tools/settings_page.py"
    source = tool.MODULE.read_text()
    assert source == tool.module(source), "run: python tools/settings_page.py"


def test_aliases_are_written_nowhere_else() -> None:
    source = (ROOT / "magneto" / "_install" / "settings.py").read_text()
    assert not [name for name in SETTINGS if f', "{name}"' in source]
    for module, rows in (
        ("dynamo", settings.DYNAMO),
        ("inductor", settings.INDUCTOR),
        ("functorch", settings.FUNCTORCH),
    ):
        aliases = {name: row.own for name, row in rows.items() if row.own in SETTINGS}
        assert aliases == {
            alias.partition(".")[2]: name
            for name, setting in SETTINGS.items()
            for alias in setting.torch
            if alias.startswith(module + ".")
        }


def another(name: str) -> bool | int | float | str:
    """A value that is not the default."""
    value = SETTINGS[name].default
    of_few = {"repro_after": "aot", "repro_level": 3, "verify": "all"}
    return of_few.get(name, {bool: not value, int: 7, float: 0.5, str: "elsewhere"}[type(value)])


@pytest.mark.parametrize("name", SETTINGS)
def test_the_core_takes_each_type(name: str) -> None:
    other = another(name)
    with magneto.config.patch({name: other}):
        assert getattr(magneto.config, name) == other
    with pytest.raises(magneto.exc.InvalidValue, match=name):
        setattr(magneto.config, name, None)


def test_environment() -> None:
    """All variables at once, in one process: each is the setting's own."""
    values = {name: another(name) for name, setting in SETTINGS.items() if setting.environment}
    texts = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in values.items()}
    environment = {SETTINGS[name].environment: text for name, text in texts.items()}
    assert len(environment) == len(values) > 10
    code = f"""
import magneto.config as c
for name, value in {values!r}.items():
    assert getattr(c, name) == value, (name, getattr(c, name))
    assert c.help(name)
"""
    fresh.python("-c", code, check=True, env={**os.environ, **environment}, cwd=ROOT)


def test_options_are_the_rows_for_callables() -> None:
    rows = {name for name, setting in SETTINGS.items() if setting.use == "callable"}
    assert rows == {name for name, option in _options.OPTIONS.items() if option.setting == name}
    compiled = magneto.compile(lambda x: x + 1, options={"cache_size_limit": 1, "error_on_recompile": True})
    compiled(torch.ones(2))
    with pytest.raises(magneto.exc.RecompileError):
        compiled(torch.ones(2, dtype=torch.float64))


def test_help_names_aliases() -> None:
    assert "torch._dynamo.config.recompile_limit" in magneto.config.help("cache_size_limit")


def test_settings_for_tests_are_apart() -> None:
    assert set(SETTINGS) | set(_test_settings.SETTINGS) == {row[0] for row in _C.setting_rows()}
    for name in _test_settings.SETTINGS:
        assert name not in magneto.config.help() and name not in dir(magneto.config)
        with pytest.raises(magneto.exc.InvalidSetting):
            getattr(magneto.config, name)
