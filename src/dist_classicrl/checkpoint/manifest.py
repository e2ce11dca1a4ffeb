"""The manifest of a checkpoint: what it says of itself and of its arrays, under a checksum of its own."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from dist_classicrl._version import __version__
from dist_classicrl.checkpoint.arrays import ArrayEntry
from dist_classicrl.checkpoint.names import CheckpointName
from dist_classicrl.errors import CheckpointUnreadableError

FORMAT = "dist_classicrl checkpoint"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
OWN_KEYS = ("format", "format_version", "package_version", "fence", "sequence", "written", "host", "arrays")
"""What the folder itself says in a manifest, and its callers must not."""

ARRAY_NAME = re.compile("[a-z0-9_]+")
_MAX_MANIFEST = 64 * 2**20


def as_bytes(body: dict[str, Any]) -> bytes:
    """Return the manifest's bytes for `body`."""
    # As it will be read: the checksum must not depend on keys that JSON turns into strings.
    plain = json.loads(json.dumps(body, allow_nan=False))
    text = _canonical(plain)
    manifest = f'{{"body":{text},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}'.encode()
    if len(manifest) > _MAX_MANIFEST:
        raise ValueError(f"the manifest would have {len(manifest)} bytes, allowed are {_MAX_MANIFEST}")
    return manifest


def read_bytes(file: BinaryIO) -> bytes:
    """Return a manifest's bytes."""
    size = file.seek(0, io.SEEK_END)
    if size > _MAX_MANIFEST:
        raise ValueError(f"its manifest has {size} bytes, allowed are {_MAX_MANIFEST}")
    file.seek(0)
    return file.read(size)


def of_another_version(url: str, body: Mapping[str, Any], why: str) -> CheckpointUnreadableError:
    """Return the error of a checkpoint that is whole, and that this version of the package cannot read."""
    return CheckpointUnreadableError(
        f"{url} cannot be read by dist_classicrl {__version__}: {why}. It was written by dist_classicrl "
        f"{body.get('package_version')!a}, and may be as good as ever: install that version, or take another "
        "folder. No older one is taken in its place, which would undo it."
    )


def checked(data: bytes, name: CheckpointName, url: str) -> tuple[dict[str, Any], dict[str, ArrayEntry]]:
    """Return the body and the arrays' entries of the manifest of the checkpoint `name`, which is at `url`.

    ValueError if it is damaged or foreign; CheckpointUnreadableError if it is whole, in another format
    version.
    """
    try:
        manifest = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its manifest is damaged ({error})") from error
    if not isinstance(manifest, dict) or set(manifest) != {"body", "sha256"}:
        raise ValueError("its manifest is not that of a checkpoint")
    body = manifest["body"]
    if hashlib.sha256(_canonical(body).encode()).hexdigest() != manifest["sha256"]:
        raise ValueError("the checksum of its manifest does not match")
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError("it was not written by this library")
    version = body.get("format_version")
    if type(version) is not int or version < 1:
        raise ValueError(f"its format version is {version!a}")
    if version != FORMAT_VERSION:
        why = f"its format version is {version}, and this version reads {FORMAT_VERSION}"
        raise of_another_version(url, body, why)
    expected = {"fence": name.fence, "sequence": name.sequence, "steps": name.steps}
    # As text: Python takes JSON's true and 1.0 for equal to 1.
    if _canonical({key: body.get(key) for key in expected}) != _canonical(expected):
        raise ValueError("its name and its manifest contradict each other")
    if not isinstance(body.get("arrays"), dict):
        raise ValueError("its manifest lists no arrays")
    return body, dict(_entries(body["arrays"]))


def _entries(arrays: dict[str, Any]) -> Iterator[tuple[str, ArrayEntry]]:
    for key, data in arrays.items():
        if ARRAY_NAME.fullmatch(key) is None:
            raise ValueError(f"{key!a} is no name of an array")
        try:
            entry = ArrayEntry.of(data)
        except ValueError as error:
            raise ValueError(f"its manifest describes {key} wrongly: {error}") from error
        if data.get("file") != f"{key}.npy":
            raise ValueError(f"{data.get('file')!a} is not the file of {key}")
        yield key, entry


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
