"""Tries a wheel as its user would: `try_wheel.py [wheel]`, by default the newest in dist/ for this Python.

Makes a virtual environment with the PyTorch that the wheel is for and nothing else, installs the wheel, compiles a
model, then adds what the demo's models need (transformers, rich) and runs the demo. PATH has the environment alone,
PyTorch's headers are removed, and for root the machine's compilers, headers and LLVM are out of sight as well (a mount
namespace).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
HIDDEN = ("/usr/include", "/usr/local/include", "/usr/lib/gcc", "/usr/lib/llvm-19", str(ROOT))

FIRST_MODEL = """
import shutil, sys
import torch, magneto
assert not any(map(shutil.which, ("cc", "c++", "gcc", "g++", "clang", "llvm-config", "ninja", "cmake"))), "a compiler"
assert magneto.__file__.startswith(sys.prefix), magneto.__file__
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
x = torch.randn(16, 64)
with torch.no_grad():
    compiled = magneto.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
stats = magneto.stats()
assert stats["graphs"] == 1 and stats["kernels"] >= 1, stats
print(f"PyTorch {torch.__version__}, Magneto {magneto.__version__}: {stats['kernels']} kernels")
"""


def newest_wheel() -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted(ROOT.glob(f"dist/magneto-*+torch*-{tag}-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        raise SystemExit(f"error: no wheel for {tag} in dist/; run `make wheel`")
    return wheels[-1]


def without_tools(command: list[str]) -> list[str]:
    """The command, for root with compilers and headers out of sight; for others as it is."""
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    allowed = (
        os.geteuid() == 0 and unshare and subprocess.run([unshare, "-m", "true"], capture_output=True).returncode == 0
    )
    if not allowed or not unshare or not mount:
        print("no mount namespaces: only PATH hides the machine's compilers")
        return command
    hide = [f"{mount} -t tmpfs none '{folder}'" for folder in HIDDEN if os.path.isdir(folder)]
    script = " && ".join([f"{mount} --make-rprivate /", *hide, 'exec "$@"'])
    return [unshare, "-m", "/bin/sh", "-c", script, "sh", *command]


class Trial:
    """A folder with the environment, and a home whose caches are empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv/bin/python"

    def step(self, what: str, command: list[str], **environment: str) -> None:
        start = time.perf_counter()
        subprocess.run(command, check=True, cwd=self.folder, env={**os.environ, **environment})
        print(f"==> {what}: {time.perf_counter() - start:.1f} s", flush=True)

    def install(self, what: str, *requirements: str) -> None:
        pip = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self.step(f"installed {what}", [*pip, *requirements])

    def run(self, what: str, *arguments: str) -> None:
        alone = {"PATH": str(self.python.parent), "HOME": str(self.folder), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        self.step(what, without_tools([str(self.python), "-P", *arguments]), **alone)


def try_wheel(wheel: Path, folder: Path) -> None:
    trial = Trial(folder)
    release = re.search(r"\+torch([\d.]+)-", wheel.name)
    if not release:
        raise SystemExit(f"error: {wheel.name} does not name its PyTorch")
    venv.create(folder / "venv", with_pip=True)
    for name in ("demo", "tests/architectures"):
        shutil.copytree(ROOT / name, folder / "copy" / name)
    shutil.copy(ROOT / "tests/models.py", folder / "copy/tests")
    copied = shutil.copy(wheel, folder)

    trial.install(f"PyTorch {release[1]}", f"torch=={release[1]}")
    trial.install("the wheel", "--no-deps", str(copied))
    subprocess.run([trial.python, "-m", "pip", "--disable-pip-version-check", "check"], check=True)
    for headers in folder.glob("venv/lib/python*/site-packages/torch/include"):
        shutil.rmtree(headers)
    trial.run("a first model", "-c", FIRST_MODEL)

    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
    trial.install("the demo's packages", *(name for name in group if re.match(r"transformers|rich|numpy", name)))
    trial.run("the demo", str(folder / "copy/demo/demo.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path)
    wheel = (parser.parse_args().wheel or newest_wheel()).resolve()
    print(f"==> {wheel.name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="magneto-wheel-") as folder:
        try_wheel(wheel, Path(folder))


if __name__ == "__main__":
    main()
