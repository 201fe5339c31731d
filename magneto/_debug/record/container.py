"""The file of a record: a zip with `record.json` and the bytes of tensors beside it.

Nothing in it runs when it is read: JSON, texts and numbers, no pickle. docs/debugging.md describes the parts.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneto import _files, exc

FORMAT, VERSION = "magneto frame record", 1
_JSON = "record.json"
_MOST_JSON = 256 * 2**20  # bytes; more is no record of a frame
_MOST_VALUES = 64 * 2**30


@dataclass
class Record:
    """What a file holds. `blobs`: bytes by name."""

    data: dict[str, Any]
    blobs: Mapping[str, bytes]
    path: str = ""


def to_bytes(record: Record) -> bytes:
    """The file's content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        text = json.dumps({"format": FORMAT, "version": VERSION, **record.data}, indent=1, allow_nan=False)
        file.writestr(_JSON, text)
        for name, data in record.blobs.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_STORED)
    return out.getvalue()


def write(path: Path, record: Record) -> None:
    """Writes the file at once or not at all. Raises OSError."""
    content = to_bytes(record)
    _files.write_whole(path, lambda out: out.write(content))


def from_bytes(content: bytes) -> Record:
    """A record of its own from a file's content: nothing in it is shared with another."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return _read(file, "")


def read(path: str | os.PathLike[str]) -> Record:
    """Reads a file. Raises InvalidRecord, with a sentence that says what to do."""
    path = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as file:
            return _read(file, path)
    except FileNotFoundError:
        raise exc.InvalidRecord(
            f"There is no file {path}: the log of the run with replay_record_enabled says where its records are."
        ) from None
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # an offset that can't be
            raise _damaged(path, str(error)) from None
        raise exc.InvalidRecord(
            f"{path} can't be read: {error.strerror}. Give a file that this user may read."
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def _read(file: zipfile.ZipFile, path: str) -> Record:
    sizes = {info.filename: info.file_size for info in file.infolist()}
    if _JSON not in sizes:
        raise exc.InvalidRecord(f"{path} is no record of a frame: it has no {_JSON}. Give a .rec file of Magneto's.")
    if sizes[_JSON] > _MOST_JSON or sum(sizes.values()) > _MOST_VALUES:
        raise _damaged(path, f"it claims to hold {sum(sizes.values())} bytes")
    data = json.loads(file.read(_JSON))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise exc.InvalidRecord(f"{path} is no record of a frame. Give a .rec file of Magneto's.")
    version = data.get("version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, f"version {version!r}")
    if version > VERSION:
        raise exc.InvalidRecord(
            f"{path} is a record of version {version}, and this Magneto reads up to version {VERSION}: replay it with "
            f"a newer Magneto ({data.get('made_by', {}).get('magneto', 'unknown')} wrote it)."
        )
    return Record(data, {name: file.read(name) for name in sizes if name != _JSON}, path)


def _damaged(path: str, why: str) -> exc.InvalidRecord:
    return exc.InvalidRecord(f"{path} is damaged ({why}). Copy it again, or record the frame again.")


@contextlib.contextmanager
def checked(record: Record) -> Iterator[None]:
    """What goes wrong meanwhile is the record's fault."""
    try:
        yield
    except exc.InvalidRecord:
        raise
    except _NOT_AS_IT_HAS_TO_BE as error:
        raise damaged(record, f"{type(error).__name__}: {error}".partition("\n")[0]) from error


_NOT_AS_IT_HAS_TO_BE = (
    *(LookupError, TypeError, ValueError, AttributeError, AssertionError),
    *(ArithmeticError, RuntimeError, MemoryError),
)


def damaged(record: Record, why: str) -> exc.InvalidRecord:
    """A part of the record is not as it has to be."""
    return _damaged(record.path or "The record", why)
