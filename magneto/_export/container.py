"""The file of an exported program: a zip with `program.json` and the bytes of tensors, `data`, uncompressed.

Nothing in it runs when it is read: no pickle. docs/exported-programs.md describes the parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

import magneto
from magneto import _files, exc

FORMAT, VERSION = "magneto exported program", 3
_JSON, _DATA = "program.json", "data"
_ALIGNED = 64
_MOST_JSON = 2**30
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError)
DAMAGED = (*_DAMAGED, RecursionError, RuntimeError, NotImplementedError, AssertionError)
"""What reading a file that is none may raise."""


class Data:
    """Tensors as places in storages, storages as places in `data`. Which tensors share memory is kept."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}  # by identity: number, storage

    def place(self, x: torch.Tensor, what: str) -> dict[str, Any]:
        """Dtype and geometry. Raises NotYet for tensors that have more to them."""
        if x.layout != torch.strided or x.device.type != "cpu" or x.is_quantized or type(x) not in _PLAIN:
            raise exc.NotYet(f"torch.export.save: {what}, which is not a dense CPU tensor")
        x = x.detach()
        if x.is_conj() or x.is_neg():
            x = x.clone()
        storage = x.untyped_storage()
        number, _ = self._storages.setdefault(storage._cdata, (len(self._storages), storage))
        dtype = str(x.dtype).removeprefix("torch.")
        row = {"dtype": dtype, "shape": list(x.shape), "stride": list(x.stride())}
        return {**row, "offset": x.storage_offset(), "storage": number}

    def sizes(self) -> list[int]:
        """Bytes of the storages, in order; each begins at a multiple of 64."""
        return [storage.nbytes() for _, storage in self._storages.values()]

    def end(self) -> int:
        """Bytes of all."""
        return sum(map(aligned, self.sizes()))

    def write(self, out: Any) -> None:
        """All storages."""
        for _, storage in self._storages.values():
            size = storage.nbytes()
            if size:
                out.write((ctypes.c_char * size).from_address(storage.data_ptr()))
            out.write(bytes(-size % _ALIGNED))


def aligned(size: int) -> int:
    """What so many bytes take."""
    return -(-size // _ALIGNED) * _ALIGNED


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def tensor_at(row: Mapping[str, Any], storages: list[torch.UntypedStorage]) -> torch.Tensor:
    """The tensor of a row. Raises ValueError for a place that is not there."""
    dtype, storage = getattr(torch, row["dtype"]), storages[row["storage"]]
    shape, stride, offset = row["shape"], row["stride"], row["offset"]
    if not isinstance(dtype, torch.dtype) or len(shape) != len(stride):
        raise ValueError("a tensor that is none")
    if not all(type(number) is int and 0 <= number < 2**62 for number in (*shape, *stride, offset)):
        raise ValueError("a tensor with sizes that are none")
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if all(shape) else -1
    if (offset + last + 1) * dtype.itemsize > storage.nbytes():
        raise ValueError("a tensor that is not in the file")
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)  # type: ignore[call-overload, no-any-return]


# -- writing


def write(target: str | os.PathLike[str] | IO[bytes], data: Mapping[str, Any], tensors: Data, extra: Any) -> None:
    """Writes the file at once or not at all. Raises OSError with a sentence."""
    header = {"format": FORMAT, "version": VERSION, "magneto": magneto.__version__, "torch": torch.__version__}
    text = json.dumps({**header, **data, "storages": tensors.sizes()}, indent=1, allow_nan=False)

    def fill(out: Any) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
            with file.open(_padded(file), "w", force_zip64=True) as into:
                tensors.write(into)
            file.writestr(zipfile.ZipInfo(_JSON), text, zipfile.ZIP_DEFLATED)
            for name, content in (extra or {}).items():
                file.writestr(zipfile.ZipInfo(f"extra/{name}"), content)

    if not isinstance(target, (str, os.PathLike)):
        return fill(target)
    try:
        _files.write_whole(Path(target), fill)
    except OSError as error:
        raise unwritable(target, error) from None


def unwritable(path: Any, error: OSError) -> OSError:
    """The same error with a sentence that says what to do."""
    text = f"{os.fspath(path)} can't be written ({error.strerror}): give a path in a folder with room that this user "
    text += "may write."
    return type(error)(error.errno, text)


def _padded(file: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The entry of the tensors: its bytes begin at a multiple of 64."""
    info = zipfile.ZipInfo(_DATA)
    begin = file.fp.tell() + 30 + len(_DATA) + 20 + 4  # type: ignore[union-attr]  # 20: sizes of 64 bits
    padding = -begin % _ALIGNED
    info.extra = struct.pack("<HH", 0x4D47, padding) + bytes(padding)
    return info


# -- reading


@contextlib.contextmanager
def opened(source: Any) -> Iterator[zipfile.ZipFile | None]:
    """The zip of a path or file object; None: it is none. A file object is left where it was."""
    begin = source.tell() if hasattr(source, "tell") else None
    try:
        file = zipfile.ZipFile(source)
    except zipfile.BadZipFile:
        yield None
    else:
        with file:
            yield file
    if begin is not None:
        source.seek(begin)


def is_ours(source: Any) -> bool:
    """The file is of `write`, whole or not."""
    with opened(source) as file:
        return file is not None and _JSON in file.namelist()


def read(source: Any) -> tuple[dict[str, Any], list[torch.UntypedStorage], dict[str, bytes]]:
    """What `write` wrote: the JSON, the storages of tensors, extra files. Raises InvalidProgram."""
    name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the file"
    try:
        with opened(source) as file:
            if file is None:
                raise ValueError("it is no zip file")
            return _read(file, name)
    except exc.InvalidProgram:
        raise
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # a place that can't be
            raise damaged(name, error) from None
        raise
    except DAMAGED as error:
        raise damaged(name, error) from None


def damaged(name: str, error: Exception) -> exc.InvalidProgram:
    """For a file that is not as `write` leaves it."""
    why = str(error) or type(error).__name__
    return exc.InvalidProgram(f"{name} is damaged ({why}). Copy it again, or save the program again.")


def _read(file: zipfile.ZipFile, name: str) -> tuple[dict[str, Any], list[torch.UntypedStorage], dict[str, bytes]]:
    if file.getinfo(_JSON).file_size > _MOST_JSON:
        raise ValueError("it claims to hold a graph of more than a gigabyte")
    data = json.loads(file.read(_JSON))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise exc.InvalidProgram(f"{name} is no exported program. Give a file of torch.export.save.")
    if data.get("version") != VERSION:
        raise exc.InvalidProgram(
            f"{name} is of version {data.get('version')!r}, and this Magneto reads version {VERSION}: load it with the "
            f"Magneto that saved it ({data.get('magneto')}), or save it again."
        )
    storages = _storages(file, data["storages"])
    extra = {entry.removeprefix("extra/"): file.read(entry) for entry in file.namelist() if entry.startswith("extra/")}
    return data, storages, extra


def _storages(file: zipfile.ZipFile, sizes: list[int]) -> list[torch.UntypedStorage]:
    info = file.getinfo(_DATA)
    ends = list(map(aligned, sizes))
    if min(sizes, default=0) < 0 or sum(ends) != info.file_size or info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("its tensors have other sizes")
    storages = []
    with file.open(_DATA) as stored:  # which compares the checksum at its end
        for size, end in zip(sizes, ends, strict=True):
            storage = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
            if (
                size
                and stored.readinto(  # type: ignore[attr-defined]
                    (ctypes.c_char * size).from_address(storage.data_ptr())
                )
                != size
            ):
                raise ValueError("it ends early")
            stored.read(end - size)
            storages.append(storage)
        stored.read()
    return storages
