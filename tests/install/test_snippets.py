"""Every program of the documents runs unchanged under `magneto.install()`, and the user sees what they say."""

from __future__ import annotations

import collections
import runpy
import warnings
from pathlib import Path

import pytest
from install.snippets import SNIPPETS, Seen

from magneto import _log

ARTIFACTS = ("graph_breaks", "guards", "recompiles", "graph_code", "output_code", "dynamic")


class Listener:
    """Keeps an artifact's texts."""

    def __init__(self, logs: dict[str, list[str]], artifact: str) -> None:
        self.logs, self.artifact = logs, artifact
        _log.listen(artifact, self.take)

    def take(self, text: str) -> None:
        self.logs[self.artifact].append(text)


def _case(name: str) -> object:
    reason = SNIPPETS[name].known_wrong
    return pytest.param(name, marks=pytest.mark.xfail(reason=reason, run=False)) if reason else name


@pytest.mark.lenient  # a limit of captures and a backend's error are fallbacks
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", [_case(name) for name in SNIPPETS])
def test_snippet(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    snippet = SNIPPETS[name]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "playground.py"
    file.write_text(snippet.program())
    logs: dict[str, list[str]] = collections.defaultdict(list)
    listeners = [Listener(logs, artifact) for artifact in ARTIFACTS]
    names, error = {}, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            names = runpy.run_path(str(file), run_name="__main__")
        except Exception as raised:
            if not snippet.raises:
                raise
            error = raised
    assert listeners
    assert (error is not None) == snippet.raises
    snippet.check(Seen(names, capsys.readouterr().out, logs, [str(one.message) for one in warned], error))
