"""`python -m magneto doctor`: what is installed, whether it works, and what to do where it does not."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import magneto
from magneto import _C, _backends, config

OK, ADVICE, PROBLEM = "ok", "advice", "PROBLEM"


class Finding(NamedTuple):
    """One line of the report."""

    state: str
    what: str
    detail: str
    remedy: str = ""


def _versions() -> Finding:
    detail = f"Magneto {magneto.__version__}, PyTorch {torch.__version__}, CPython {platform.python_version()}"
    # Another PyTorch than the core's is refused when magneto is imported.
    return Finding(OK, "versions", f"{detail}, {platform.system()} {platform.machine()}")


def _abi() -> Finding:
    abi = "C++11" if torch.compiled_with_cxx11_abi() else "pre-C++11"
    libc = " ".join(platform.libc_ver()) or "another C library"
    return Finding(OK, "ABI", f"the core was built against PyTorch {_C.torch_version}; {abi} library ABI, {libc}")


def _cpu() -> Finding:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "DEFAULT":
        remedy = "unset ATEN_CPU_CAPABILITY, or use a machine with AVX2: kernels use plain vectors here"
        return Finding(ADVICE, "CPU", "no vector instructions that PyTorch uses", remedy)
    return Finding(OK, "CPU", f"{capability}, {os.cpu_count()} cores; {_features()}")


# Of /proc/cpuinfo: what generated code and PyTorch's libraries make use of.
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")


def _features() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "features unknown"
    flags = next((line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")), [])
    return " ".join(name for name in _FEATURES if name in flags) or "none of " + ", ".join(_FEATURES)


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if threads > cores:
        remedy = f"torch.set_num_threads({cores}) or OMP_NUM_THREADS={cores}: more threads than cores slow each other"
        return Finding(ADVICE, "threads", f"{threads} threads on {cores} cores", remedy)
    return Finding(OK, "threads", f"{threads} threads on {cores} cores")


def _code_generation() -> Finding:
    library = Path(_C.__file__).with_name("libmagneto_codegen.so")
    if not library.exists():
        remedy = "rebuild with LLVM's static libraries (docs/dependencies.md); until then operators run one by one"
        return Finding(ADVICE, "code generation", f"{library} is missing", remedy)
    return Finding(OK, "code generation", f"{library.name}, {library.stat().st_size >> 20} MB")


def _cache() -> Finding:
    if not config.disk_cache:
        remedy = "unset MAGNETO_DISK_CACHE, so that other processes need not make the same code again"
        return Finding(ADVICE, "cache on disk", "off", remedy)
    try:
        folder = Path(config.disk_cache_dir or _C.cache_directory())
    except RuntimeError as error:
        return Finding(PROBLEM, "cache on disk", str(error), "set MAGNETO_CACHE_DIR to a folder of your own")
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        remedy = "set MAGNETO_CACHE_DIR to a folder of your own; until then each process compiles again"
        return Finding(PROBLEM, "cache on disk", f"{folder} can't be made: {error.strerror}", remedy)
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    detail = f"{folder}: {len(files)} files, {size:.1f} of {config.disk_cache_mb} MB"
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        remedy = f"make {folder} writable, or set MAGNETO_CACHE_DIR to a folder of your own"
        return Finding(PROBLEM, "cache on disk", f"{detail}; not writable: {error.strerror}", remedy)
    return Finding(OK, "cache on disk", detail)


# Variables under which a program does less than it looks like, and what each does.
_VARIABLES = {
    "TORCHDYNAMO_DISABLE": "nothing is compiled",
    "MAGNETO_INTERPRET_KERNELS": "kernels run in the slow interpreter",
    "MAGNETO_STRICT": "fallbacks to CPython are errors",
    "TORCHDYNAMO_SUPPRESS_ERRORS": "what fails to compile is a line of the log, and runs under CPython",
    "MAGNETO_STAGE_MEMORY": "compiles measure memory, which takes time",
}


def _environment() -> Finding:
    found = [f"{name}=1: {meaning}" for name, meaning in _VARIABLES.items() if os.environ.get(name) == "1"]
    if found:
        return Finding(ADVICE, "environment", "; ".join(found), "unset what you did not mean")
    return Finding(OK, "environment", "no variable that changes what is compiled")


def _backend(name: str) -> Finding:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU()).eval()
    x = torch.randn(4, 16)
    magneto.reset()
    try:
        with torch.no_grad(), config.patch(disable=False, suppress_errors=False, disk_cache=False):
            want = model(x)
            start = time.perf_counter()
            got = magneto.compile(model, backend=name, fullgraph=True)(x)
            seconds = time.perf_counter() - start
    except Exception:
        remedy = "report this with the traceback; until then use another backend, or magneto.config.disable = True"
        return Finding(PROBLEM, f"backend {name}", traceback.format_exc(), remedy)
    uncompiled = magneto.stats()["uncompiled"]
    if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
        error = (got - want).abs().max().item()
        return Finding(PROBLEM, f"backend {name}", f"results differ from eager's by {error:.2g}", "report this")
    detail = f"a model compiled in {seconds * 1e3:.0f} ms gives eager's results"
    if uncompiled:
        remedy = "see code generation above"
        return Finding(ADVICE, f"backend {name}", f"{detail}, operator by operator: {', '.join(uncompiled)}", remedy)
    return Finding(OK, f"backend {name}", detail)


CHECKS: tuple[Callable[[], Finding], ...] = (_versions, _abi, _cpu, _threads, _code_generation, _cache, _environment)


def findings() -> list[Finding]:
    """All checks, in order; a model is compiled with each of Magneto's backends. Forgets captures and counters."""
    found = [check() for check in CHECKS] + [_backend(name) for name in _backends.NATIVE]
    magneto.reset()
    return found


def main() -> int:
    """Prints the report; 1 if there is a problem."""
    found = findings()
    width = max(len(finding.what) for finding in found) + 1
    for finding in found:
        print(f"{finding.state:8}{finding.what:{width}}{finding.detail}")
        if finding.remedy:
            print(f"{'':8}{'':{width}}-> {finding.remedy}")
    problems = sum(finding.state == PROBLEM for finding in found)
    advice = sum(finding.state == ADVICE for finding in found)
    verdict = (
        f"{problems} problem{'s' * (problems != 1)}: Magneto does not work here as it should."
        if problems
        else ("Magneto works here" + (f"; {advice} thing{'s' * (advice != 1)} could be better." if advice else "."))
    )
    print(f"\n{verdict}", file=sys.stdout)
    return 1 if problems else 0
