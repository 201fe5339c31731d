"""Files of magneto.aot_compile in C++: built with CMake and g++, without Python, with Python's results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import magneto

PACKAGE = Path(magneto.__file__).parent
DEMO = Path(__file__).parents[2] / "demo" / "aot"

WITH_TORCH = """
#include <ATen/ATen.h>
#include <magneto/aot.h>
#include <iostream>
#include <thread>
int main(int, char** words) {
  magneto::AotProgram program(words[1]);
  const at::Tensor x = at::linspace(-1, 1, 40).view({10, 4});
  std::thread([&] { program({x}); }).join();
  const at::Tensor result = program({x})[0];
  std::printf("%a %a\\n", result[0][0].item<float>(), result[9][3].item<float>());
  try {
    program({x.to(at::kDouble)});
  } catch (const std::runtime_error& error) {
    std::cout << error.what() << "\\n";
  }
  try {
    magneto::AotProgram none("nowhere");
  } catch (const std::runtime_error& error) {
    std::cout << error.what() << "\\n";
  }
}
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.nn.functional.gelu(self.first(x))), -1)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("aot") / "model.mag"
    rows = torch.export.Dim("rows", min=2, max=64)
    return magneto.aot_compile(Model(), (torch.ones(6, 4),), dynamic_shapes=({0: rows},), path=path)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)


def expected(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return magneto.compile(Model(), dynamic=True)(x)  # type: ignore[no-any-return]


def test_the_demo(program: str, tmp_path: Path) -> None:
    beside = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])  # `make` installs it there
    cmake = shutil.which("cmake", path=beside) or pytest.fail("cmake is missing")
    made = run(cmake, "-S", DEMO, "-B", tmp_path, f"-DMAGNETO={PACKAGE}")
    assert made.returncode == 0, made.stderr
    built = run(cmake, "--build", tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    first = float(expected(torch.ones(8, 4))[0, 0])
    done = run(tmp_path / "run", program, "8x4")
    assert done.stdout == f"[8, 4] {hex_float(first)}\n", done.stderr
    wrong = run(tmp_path / "run", program, "8x5")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "Expected input at *args[0].shape[1] to be equal to 4, but got 5\n",
    )


def hex_float(number: float) -> str:
    """As C's %a writes it."""
    mantissa, exponent = number.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


@pytest.mark.long  # a compilation with all of libtorch's headers
def test_on_tensors_of_libtorch(program: str, tmp_path: Path) -> None:
    source, binary = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(WITH_TORCH)
    torch_folder = Path(torch.__file__).parent
    built = run(
        *("g++", "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", source),
        *("-o", binary, f"-I{PACKAGE}/include", f"-isystem{torch_folder}/include"),
        *(f"-isystem{torch_folder}/include/torch/csrc/api/include", f"-L{PACKAGE}", f"-L{torch_folder}/lib"),
        *("-lmagneto_aot", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{PACKAGE}:{torch_folder}/lib"),
        *("-Wl,--no-as-needed", "-pthread"),
    )
    assert built.returncode == 0, built.stderr
    done = run(binary, program)
    result = expected(torch.linspace(-1, 1, 40).view(10, 4))
    assert done.stdout.splitlines() == [
        f"{hex_float(float(result[0, 0]))} {hex_float(float(result[9, 3]))}",
        "Expected input at *args[0] to have dtype torch.float32, but got torch.float64",
        "nowhere can't be read (No such file or directory): give the path of a file that this user may read.",
    ], done.stderr


def test_the_library_knows_no_python() -> None:
    symbols = run("nm", "-D", "--undefined-only", PACKAGE / "libmagneto_aot.so").stdout
    assert not [name for name in symbols.split() if name.startswith(("Py", "_Py", "THP"))]
    needed = run("readelf", "-d", PACKAGE / "libmagneto_aot.so").stdout
    assert "libpython" not in needed
    assert "libtorch_python" not in needed
