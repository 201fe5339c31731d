"""The functions of torch._dynamo.debug_utils, and what peers' repro scripts call, in terms of Magneto's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magneto import config
from magneto._debug import minify, same, scripts


def same_two_models(
    gm: Callable[..., Any],
    opt_gm: Callable[..., Any],
    example_inputs: Sequence[Any],
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
) -> bool:
    """Whether both give the same results and gradients, within the noise of eager's own dtype."""
    return not same.differences(
        gm,
        opt_gm,
        example_inputs,
        only_fwd,
        require_fp64=require_fp64,
        ignore_integers=ignore_non_fp or config.repro_ignore_non_fp,
        use_fp64=config.same_two_models_use_fp64,
        tolerance=config.repro_tolerance,
    )


def backend_accuracy_fails(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler_fn: Any,
    only_fwd: bool = False,
    *,
    require_fp64: bool = False,
    ignore_non_fp: bool = False,
) -> bool:
    """Whether a backend's results are not eager's. A backend that raises shows another fault: False."""
    try:
        compiled = minify.compile_graph(same.copy_of(gm), same.clone_inputs(example_inputs), compiler_fn)
        return not same_two_models(
            gm, compiled, example_inputs, only_fwd, require_fp64=require_fp64, ignore_non_fp=ignore_non_fp
        )
    except Exception:
        return False


def generate_env_vars_string(*, stable_output: bool = False) -> str:
    """Lines of Python that set the environment variables that matter to compiling."""
    return "# env var omitted due to stable_output=True" if stable_output else scripts.variables()


def generate_config_string(*, stable_output: bool = False) -> str:
    """Lines of Python that set the settings that are not at their defaults."""
    return "# config omitted due to stable_output=True" if stable_output else "import magneto\n" + scripts.settings()


def minifier_dir() -> str:
    """Where scripts go."""
    return str(scripts.folder())


def get_minifier_repro_path() -> str:
    """Where the launcher goes."""
    return os.path.join(minifier_dir(), "minifier_launcher.py")


class InputReader:
    """What scripts of torch.compile load their inputs with: `load_args(reader)` appends to `args`."""

    def __init__(self, save_dir: str | None = None, *, pbar: Any = None) -> None:
        self.args: list[Any] = []
        self._folder = save_dir

    def storage(
        self, storage_hash: str | None, nbytes: int, *, device: Any = None, dtype_hint: torch.dtype | None = None
    ) -> torch.UntypedStorage:
        """The bytes of that name in the folder; else random numbers."""
        if self._folder and storage_hash:
            file = os.path.join(self._folder, "storages", storage_hash)
            if os.path.exists(file):
                with open(file, "rb") as data:
                    return torch.frombuffer(bytearray(data.read()), dtype=torch.uint8).untyped_storage()
        dtype = dtype_hint or torch.float32
        from magneto._install.profiling import rand_strided

        count = -(-nbytes // dtype.itemsize)
        return rand_strided((count,), (1,), dtype, device or "cpu").untyped_storage()

    def tensor(
        self,
        storage: torch.UntypedStorage,
        shape: Sequence[int],
        stride: Sequence[int] | None = None,
        *,
        storage_offset: int = 0,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        is_leaf: bool = True,
        **metadata: Any,
    ) -> torch.Tensor:
        """A tensor on a storage."""
        if stride is None:
            stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        x = torch.empty(0, dtype=dtype or torch.float32, device=storage.device)
        x.set_(storage, storage_offset, tuple(shape), tuple(stride))  # type: ignore[call-overload]
        x.requires_grad_(requires_grad)
        if requires_grad and not is_leaf:
            with torch.enable_grad():
                x = x.clone(memory_format=torch.preserve_format)
        self.args.append(x)
        return x

    def symint(self, value: Any) -> Any:
        """A number."""
        self.args.append(value)
        return value

    def const(self, name: str) -> Any:
        """A value that no script can hold."""
        self.args.append(None)


def inputs_of(load_args: Any, save_dir: str | None = None) -> list[Any]:
    """The inputs of a script: a list, or what `load_args(reader)` reads."""
    if not callable(load_args):
        return list(load_args)
    reader = InputReader(save_dir)
    load_args(reader)
    return reader.args
