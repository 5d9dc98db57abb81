"""Scalars for TensorBoard, without it: records framed as TFRecord, events encoded by hand.

A record is

    length (uint64), masked CRC-32C of those 8 bytes, data, masked CRC-32C of the data

all little-endian. Its data is a protobuf message, of which few fields are needed:

    Event    1: wall_time (double)  2: step (int64)  3: file_version (string)  5: summary (Summary)
    Summary  1: value (Value, repeated)
    Value    1: tag (string)  2: simple_value (float)

A field is its number and its kind in one varint, (number << 3) | kind, and then its content.
"""

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat

import numpy as np

VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5  # the kinds of fields


def _byte_remainder(byte: int) -> int:
    """What the eight bits of a byte leave of a division by the Castagnoli polynomial, reflected."""
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_REMAINDERS = [_byte_remainder(byte) for byte in range(256)]
_file_numbers = itertools.count()  # two writers of one second and process get two files


def crc32c(data: bytes) -> int:
    """The CRC-32C checksum, a table look-up per byte."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = (remainder >> 8) ^ _REMAINDERS[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF


class EventWriter:
    """Writes scalars to a new event file that TensorBoard can read.

    Args:
      directory: where to; made if it is not there. A resumed run adds a file to it.
      clock: gives the wall time, in seconds since 1970.
    """

    def __init__(self, directory: str | Path, *, clock: Callable[[], float] = time.time):
        self._clock = clock
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        host = socket.gethostname()
        name = f"events.out.tfevents.{int(clock()):010d}.{host}.{os.getpid()}.{next(_file_numbers)}"
        self.path = directory / name
        self._file = self.path.open("xb")
        self._write_event(_sized(3, b"brain.Event:2"))
        self.flush()

    def write(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Adds one point, at that step, to the curve of each tag; values are kept as float32."""
        if step < 0:
            raise ValueError(f"step must be at least 0; got {step}.")
        summary = b"".join(_sized(1, _value(tag, value)) for tag, value in values.items())
        self._write_event(_key(2, VARINT) + _varint(step) + _sized(5, summary))

    def flush(self) -> None:
        """Hands what was written to the operating system: a reader sees it."""
        self._file.flush()

    def close(self) -> None:
        """Ends the file; a second time does nothing."""
        self._file.close()

    def _write_event(self, fields: bytes) -> None:
        data = _key(1, EIGHT_BYTES) + struct.pack("<d", self._clock()) + fields
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_checksum(length) + data + _masked_checksum(data))

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _masked_checksum(data: bytes) -> bytes:
    """CRC-32C rotated and shifted, so that data which holds checksums has no weak checksum."""
    checksum = crc32c(data)
    rotated = checksum >> 15 | checksum << 17
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _value(tag: str, value: SupportsFloat) -> bytes:
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        number = np.float64(float(value)).astype("<f4")
    return _sized(1, tag.encode()) + _key(2, FOUR_BYTES) + number.tobytes()


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _sized(number: int, content: bytes) -> bytes:
    """A field of bytes: string or message."""
    return _key(number, SIZED) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
