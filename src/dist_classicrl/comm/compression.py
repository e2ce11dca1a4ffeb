"""Messages in fewer bytes, with no bit of them changed: by shorter forms of numbers, and by Zstandard."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.comm import messages
from dist_classicrl.comm.compact import Compact, lengthen, shorten
from dist_classicrl.comm.envelope import Kind, bytes_of, damaged

_WORD = 8  # all of an encoded message lies on boundaries of so many bytes
_LEAST_BYTES = 1024  # a shorter message goes as it is
_LEAST_GAIN = 0.1
_LEFT_ALONE = 8  # messages that are not tried after one that did not get smaller by that
_LEVEL = 1
_BYTES_PER_ENTRY = 128
_BYTES_BESIDES = 2**20


@messages.message(Kind.COMPRESSED)
class Compressed(NamedTuple):
    """Another message, compressed."""

    data: np.ndarray  # uint8: one Zstandard frame, which tells its size and has a checksum


class Codec:
    """Encodes and decodes messages as `dist_classicrl.comm.messages` does; with what compression spared."""

    wants_order = False
    """Whether messages are shorter where entries ascend."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def encode(self, message: object) -> tuple[np.ndarray, int]:
        """Return a message as one ndarray(uint8), and the bytes by which compression made it shorter."""
        return messages.encode(message), 0

    def decode(self, received: np.ndarray) -> tuple[Any, int]:
        """Return likewise the message that came; ProtocolError if it is none."""
        return messages.decode(received), 0

    def take_seconds(self) -> float:
        """Return the time that compressing and restoring took since the last call, in seconds."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class DeltaCodec(Codec):
    """Gives the numbers of messages shorter forms where that makes these smaller by a tenth at least."""

    wants_order = True
    _columns = False  # whether a compressor follows

    def __init__(self) -> None:
        super().__init__()
        self._most = np.iinfo(np.int64).max
        self._left_alone = 0

    def encode(self, message: object) -> tuple[np.ndarray, int]:
        """See `Codec`."""
        plain = messages.encode(message)
        if not _LEAST_BYTES <= plain.size <= self._most:
            return plain, 0
        if self._left_alone:
            self._left_alone -= 1
            return plain, 0
        begin = time.perf_counter()
        packed = self._pack(messages.encode(shorten(plain, self._columns)))
        self._seconds += time.perf_counter() - begin
        if packed.size > (1.0 - _LEAST_GAIN) * plain.size:
            self._left_alone = _LEFT_ALONE
            return plain, 0
        return packed, plain.size - packed.size

    def decode(self, received: np.ndarray) -> tuple[Any, int]:
        """See `Codec`."""
        begin = time.perf_counter()
        told = self._unpack(messages.decode(received))
        if not isinstance(told, Compact):
            return told, 0
        kind, parts = lengthen(told)
        self._seconds += time.perf_counter() - begin
        return messages.of_parts(kind, parts), bytes_of(parts) - received.size

    def _pack(self, shortened: np.ndarray) -> np.ndarray:
        return shortened

    def _unpack(self, told: Any) -> Any:
        return told


class LosslessCodec(DeltaCodec):
    """Compresses what `DeltaCodec` makes, likewise where it pays.

    Messages that tell of a table with so many `entries` cannot be longer than this allows: one that claims to
    be is refused before there is memory for it. `Settings` has checked that the library is there.
    """

    _columns = True

    def __init__(self, entries: int) -> None:
        import zstandard as library

        super().__init__()
        self._library = library
        self._compressor = library.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._decompressor = library.ZstdDecompressor()
        self._most = _BYTES_PER_ENTRY * entries + _BYTES_BESIDES

    def _pack(self, shortened: np.ndarray) -> np.ndarray:
        frame = self._compressor.compress(shortened.tobytes())
        return messages.encode(Compressed(np.frombuffer(frame, np.uint8)))

    def _unpack(self, told: Any) -> Any:
        return messages.decode(self._restore(told.data)) if isinstance(told, Compressed) else told

    def _restore(self, data: np.ndarray) -> np.ndarray:
        kind = Kind.COMPRESSED.name
        if data.dtype != np.uint8:
            raise damaged(kind, f"it has numbers of type {data.dtype} in place of bytes")
        frame = data.tobytes()
        try:
            size = self._library.frame_content_size(frame)
            if not 0 < size <= self._most or size % _WORD:
                raise damaged(kind, f"it claims to hold {size} bytes, where {self._most} are the most")
            plain = self._decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
        except self._library.ZstdError as error:
            raise damaged(kind, f"it cannot be decompressed: {error}") from error
        return np.frombuffer(bytearray(plain), np.uint8)  # which may be written to, as what came may be


def codec_for(kind: str, entries: int) -> Codec:
    """Return what reads and writes messages of a table with so many entries, for a kind of compression.

    `kind` is one of `dist_classicrl.compression.NAMED`.
    """
    if kind == "none":
        return Codec()
    return LosslessCodec(entries) if kind == "lossless" else DeltaCodec()
