"""Tensors in records: dtype and geometry, storages by their bytes or, if these are too many, by how they are spread."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def refusal(x: torch.Tensor) -> str:
    """Why a tensor can't be recorded; empty: it can."""
    if x.layout != torch.strided:
        return f"a tensor of layout {x.layout} can't be recorded"
    if x.is_quantized:
        return "a quantized tensor can't be recorded"
    if x.is_nested:
        return "a nested tensor can't be recorded"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "a tensor under a transform of torch.func can't be recorded"
    if x.device.type not in ("cpu", "cuda", "meta"):
        return f"a tensor on {x.device} can't be recorded"
    if any(name is not None for name in getattr(x, "names", ())):
        return "a tensor with named dimensions can't be recorded"
    return ""


class Storages:
    """The memory of a record's tensors: which share one is part of what is recorded."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._tensors: list[torch.Tensor] = []  # one of each storage
        self.uses: list[int] = []

    def number(self, x: torch.Tensor) -> int:
        """Of a tensor's storage."""
        storage = x.untyped_storage()
        key = (str(x.device), storage._cdata)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            dtype = str(x.dtype).removeprefix("torch.")
            self.rows.append({"device": str(x.device), "nbytes": storage.nbytes(), "dtype": dtype})
            self._tensors.append(x)
            self.uses.append(0)
        number = self._numbers[key]
        self.uses[number] += 1
        return number

    def forget(self, count: int) -> None:
        """All but the first so many."""
        for key in [key for key, number in self._numbers.items() if number >= count]:
            del self._numbers[key]
        del self.rows[count:], self._tensors[count:], self.uses[count:]

    def fill(self, most: int) -> dict[str, bytes]:
        """The bytes by name, smallest first, up to `most`; the rows of others get what random values have to be."""
        blobs = {}
        for number in sorted(range(len(self.rows)), key=lambda n: self.rows[n]["nbytes"]):
            row, x = self.rows[number], self._tensors[number]
            if x.device.type == "meta":
                continue
            if row["nbytes"] <= most:
                most -= row["nbytes"]
                row["values"] = f"storages/{number}"
                blobs[row["values"]] = bytes_of(x.untyped_storage())
            else:
                row["random"] = {"seed": number, **_spread(x)}
        return blobs


def bytes_of(storage: torch.UntypedStorage) -> bytes:
    """A copy of what it holds."""
    host: Any = storage
    if storage.device.type != "cpu":
        host = host.cpu()
    return ctypes.string_at(host.data_ptr(), host.nbytes()) if host.nbytes() else b""


def _spread(x: torch.Tensor) -> dict[str, Any]:
    """What random values have to keep to: the range of integers, mean and deviation of floats."""
    flat = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    if x.dtype in _INTEGERS:
        return {"low": int(flat.min()), "high": int(flat.max())}
    if not x.dtype.is_floating_point or x.dtype.itemsize < 2:
        return {}
    sample = flat[: 2**20].double()
    sample = sample[sample.isfinite()]
    if sample.numel() < 2:
        return {}
    return {"mean": float(sample.mean()), "deviation": float(sample.std())}


def describe(x: torch.Tensor) -> dict[str, Any]:
    """Dtype and geometry."""
    row: dict[str, Any] = {
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": list(x.shape),
        "stride": list(x.stride()),
        "offset": x.storage_offset(),
        "device": str(x.device),
        "requires_grad": x.requires_grad,
        "leaf": x.is_leaf,
    }
    if x.is_conj():
        row["conj"] = True
    if x.is_neg():
        row["neg"] = True
    if x.is_inference():
        row["inference"] = True
    return row


# -- and back


def storage_of(row: Mapping[str, Any], blobs: Mapping[str, bytes]) -> torch.UntypedStorage:
    """The memory that a row describes."""
    nbytes, dtype = int(row["nbytes"]), getattr(torch, row["dtype"])
    memory = torch.empty(nbytes, dtype=torch.uint8)
    if "values" in row:
        data = blobs[row["values"]]
        if len(data) != nbytes:
            raise ValueError(f"{row['values']} has {len(data)} bytes, not {nbytes}")
        if data:
            ctypes.memmove(memory.data_ptr(), data, nbytes)
    elif "random" in row:
        whole = nbytes // dtype.itemsize * dtype.itemsize
        _randomise(memory[:whole].view(dtype), row["random"])
        memory[whole:].zero_()
    storage = memory.untyped_storage()
    device = torch.device(row["device"])
    if device.type == "meta":
        return torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
    return storage if device.type == "cpu" else memory.to(device).untyped_storage()


def _randomise(x: torch.Tensor, how: Mapping[str, Any]) -> None:
    generator = torch.Generator().manual_seed(int(how["seed"]))
    if "low" in how:
        low, high = int(how["low"]), int(how["high"])
        x.copy_(torch.randint(low, high + 1, x.shape, generator=generator, dtype=torch.int64))
    elif x.dtype == torch.bool:
        x.copy_(torch.randint(0, 2, x.shape, generator=generator))
    elif x.dtype.is_floating_point or x.dtype.is_complex:
        wide = torch.promote_types(x.dtype, torch.float32)
        values = torch.randn(x.shape, generator=generator, dtype=wide)
        x.copy_(values * float(how.get("deviation", 1.0)) + float(how.get("mean", 0.0)))
    else:
        x.zero_()


def tensor_of(row: Mapping[str, Any], storage: torch.UntypedStorage, is_shared: bool) -> torch.Tensor:
    """A tensor on a storage. One that autograd made is made by autograd again, from a leaf."""
    x = torch.empty(0, dtype=getattr(torch, row["dtype"]), device=row["device"])
    x.set_(storage, row["offset"], tuple(row["shape"]), tuple(row["stride"]))  # type: ignore[call-overload]
    if row.get("conj"):
        x = torch._conj(x)
    if row.get("neg"):
        x = torch._neg_view(x)
    x.requires_grad_(row["requires_grad"])
    if row["requires_grad"] and not row["leaf"]:
        with torch.enable_grad():
            x = x.view_as(x) if is_shared else x.clone(memory_format=torch.preserve_format)
    return x
