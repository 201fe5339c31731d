"""Which PyTorch a core runs with, and how wheels say which one that is."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

from magneto import _C, _load
from magneto._load import TorchBuild

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(version: str, git: str = "cf30153c4c131c81", debug: bool = False, cxx11: bool = True) -> TorchBuild:
    return TorchBuild(version, git, debug, cxx11)


CPU = build("2.13.0+cpu")


@pytest.mark.parametrize(
    ("core", "here"),
    [
        (CPU, CPU),
        (CPU, build("2.13.0+cu130")),
        (CPU, build("2.13.0")),
        (build("2.13.0"), CPU),
        (build("2.14.0a0+git1234567"), build("2.14.0a0")),
        (build("2.13.0+local", "Unknown"), build("2.13.0+local", "Unknown")),
        (build("2.13.0", "None"), build("2.13.0", "None")),
    ],
)
def test_builds_of_one_release_are_the_same(core: TorchBuild, here: TorchBuild) -> None:
    _load.refuse_torch(core, here)


@pytest.mark.parametrize(
    ("core", "here", "cause", "next_step"),
    [
        (CPU, build("2.13.1+cpu"), "built with PyTorch 2.13.0, but PyTorch 2.13.1.cpu is", "for PyTorch 2.13.1 or PyTorch 2.13.0"),
        (CPU, build("2.14.0+cpu"), "but PyTorch 2.14.0.cpu is installed", "make build"),
        (CPU, build("2.13.0a0"), "but PyTorch 2.13.0a0 is installed", "wheel of Magneto for PyTorch 2.13.0a0"),
        (CPU, build("2.13.0rc1"), "but PyTorch 2.13.0rc1 is installed", "make wheel"),
        (CPU, build("2.13.0+cpu", "aaaaaaaaaaaaaaaa"), "of commit cf30153c4c, but.* from commit aaaaaaaaaa", "PyPI"),
        (CPU, build("2.13.0+cu130", "Unknown"), "was built from an unknown commit", "make build"),
        (build("2.13.0", "None"), build("2.13.0+own", "None"), "of an unknown commit", "make build"),
        (CPU, build("2.13.0+cpu", cxx11=False), "for the C.*11 ABI, but this .* from before C", "with the C.*11 ABI, or build"),
        (build("2.13.0", cxx11=False), CPU, "ABI from before C.*, but this PyTorch", "make build"),
        (CPU, build("2.13.0", debug=True), "a release build .* but a debug build", "Install a release build"),
    ],
)  # fmt: skip
def test_other_pytorches_are_refused(core: TorchBuild, here: TorchBuild, cause: str, next_step: str) -> None:
    with pytest.raises(ImportError, match=cause) as caught:
        _load.refuse_torch(core, here)
    assert caught.match(next_step)


def test_the_core_says_what_it_was_built_with(tmp_path: Path) -> None:
    found = _load.built_with(Path(_C.__file__))
    assert found.release == torch.__version__.partition("+")[0] and found.git == torch.version.git_version
    assert found.cxx11 == torch.compiled_with_cxx11_abi() and found.version == _C.torch_version
    (tmp_path / "other.so").write_bytes(b"\x7fELF and nothing of ours")
    with pytest.raises(ImportError, match="does not say which PyTorch it was built with"):
        _load.built_with(tmp_path / "other.so")


def test_wheels_name_their_pytorch(tmp_path: Path) -> None:
    wheel = tmp_path / "magneto-0.1.0-cp311-cp311-linux_x86_64.whl"
    folder = "magneto-0.1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr(f"{folder}/RECORD", "")
        made.writestr(f"{folder}/METADATA", "Name: magneto\nVersion: 0.1.0\nRequires-Dist: torch<2.16,>=2.11\n")
        made.writestr("magneto/_C.so", b"core")
    named = tool("name_wheel").name_wheel(wheel, "2.13.0", tmp_path)
    assert named.name == "magneto-0.1.0+torch2.13.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(named) as made:
        folder = "magneto-0.1.0+torch2.13.0.dist-info"
        assert sorted(made.namelist()) == [f"{folder}/METADATA", f"{folder}/RECORD", "magneto/_C.so"]
        metadata = made.read(f"{folder}/METADATA").decode()
        assert "Version: 0.1.0+torch2.13.0\n" in metadata and "Requires-Dist: torch==2.13.0\n" in metadata
        rows = dict(line.split(",", 1) for line in made.read(f"{folder}/RECORD").decode().splitlines())
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"core").digest()).rstrip(b"=").decode()
        assert rows["magneto/_C.so"] == f"sha256={digest},4" and rows[f"{folder}/RECORD"] == ","
        assert set(rows) == set(made.namelist())


def test_releases_that_wheels_are_made_for() -> None:
    name_wheel = tool("name_wheel")
    offered = "2.16.0, 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0rc1, 2.12.9, 2.12.10, 2.10.0, 2.11.0".split(",")
    assert name_wheel.newest_patches(offered, (2, 11), (2, 16)) == ["2.11.0", "2.12.10", "2.13.0", "2.14.1", "2.15.0"]
    assert name_wheel.supported()[0] == (2, 11)


def test_pairs_that_wheels_are_made_for(tmp_path: Path) -> None:
    asked = {"PYTHONS": sys.executable, "RELEASES": "2.12.1 2.13.0"}
    command = [ROOT / "tools/wheels.sh", "pairs"]
    process = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == [f"{sys.executable} 2.12.1", f"{sys.executable} 2.13.0"]

    # An interpreter that runs nothing, as a shim of a version that is not chosen, is passed over.
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    nothing = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path), "PYTHONS": "", "RELEASES": "2.13.0"}
    process = subprocess.run(command, env={**os.environ, **nothing}, capture_output=True, text=True, check=True)
    assert str(shim) not in process.stdout
