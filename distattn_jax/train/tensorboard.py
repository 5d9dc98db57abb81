"""Write scalars for TensorBoard, without importing TensorBoard.

An event file is a sequence of TFRecord records. All numbers are little-endian:

    length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data

The data of a record is a protobuf message `Event`. Only these fields are needed:

    Event    1: wall_time (double)  2: step (int64)  3: file_version (string)  5: summary (Summary)
    Summary  1: value (Value, repeated)
    Value    1: tag (string)  2: simple_value (float)

A field is encoded as the varint of (field number << 3) | wire type, followed by its content.
"""

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat

import numpy as np

# Wire types of protobuf.
VARINT, EIGHT_BYTES, LENGTH_DELIMITED, FOUR_BYTES = 0, 1, 2, 5


def _byte_remainder(byte: int) -> int:
    """Return the remainder of one byte modulo the reflected Castagnoli polynomial."""
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_REMAINDERS = [_byte_remainder(byte) for byte in range(256)]
_file_numbers = itertools.count()  # distinguishes files that one process opens in the same second


def crc32c(data: bytes) -> int:
    """Return the CRC-32C checksum of the data, with one table lookup per byte."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = (remainder >> 8) ^ _REMAINDERS[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF


class EventWriter(contextlib.AbstractContextManager):
    """Write scalars to a new TensorBoard event file.

    Args:
      directory: Directory of the event files, created if missing. A resumed run adds a new file.
      clock: Function that returns the wall time, in seconds since 1970.
    """

    def __init__(self, directory: str | Path, *, clock: Callable[[], float] = time.time):
        self._clock = clock
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        host = socket.gethostname()
        name = f"events.out.tfevents.{int(clock()):010d}.{host}.{os.getpid()}.{next(_file_numbers)}"
        self.path = directory / name
        self._file = self.path.open("xb")
        self._write_event(_bytes_field(3, b"brain.Event:2"))
        self.flush()

    def write(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Add one point to the curve of each tag.

        Args:
          step: Horizontal position of the points, at least 0.
          values: Dict from tag to value. Values are stored as float32.
        """
        if step < 0:
            raise ValueError(f"step must be at least 0; got {step}.")
        summary = b"".join(_bytes_field(1, _value(tag, value)) for tag, value in values.items())
        self._write_event(_key(2, VARINT) + _varint(step) + _bytes_field(5, summary))

    def flush(self) -> None:
        """Pass buffered events to the operating system, so that other processes can read them."""
        self._file.flush()

    def close(self) -> None:
        """Close the file. Calling this method twice is allowed."""
        self._file.close()

    def _write_event(self, fields: bytes) -> None:
        """Write one record: the wall time followed by the encoded fields."""
        data = _key(1, EIGHT_BYTES) + struct.pack("<d", self._clock()) + fields
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_checksum(length) + data + _masked_checksum(data))

    def __exit__(self, *exception: object) -> None:
        self.close()


def _masked_checksum(data: bytes) -> bytes:
    """Return the CRC-32C of the data, masked as TFRecord requires.

    Masking rotates the checksum and adds a constant. Without masking, the checksum would be weak
    for data that already contains CRC checksums.
    """
    checksum = crc32c(data)
    rotated = checksum >> 15 | checksum << 17
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def _value(tag: str, value: SupportsFloat) -> bytes:
    """Encode a message `Value`: a tag and a float32."""
    with np.errstate(over="ignore"):  # values beyond the range of float32 become infinite
        number = np.float64(float(value)).astype("<f4")
    return _bytes_field(1, tag.encode()) + _key(2, FOUR_BYTES) + number.tobytes()


def _key(number: int, wire_type: int) -> bytes:
    """Encode the number and the wire type of a field."""
    return _varint(number << 3 | wire_type)


def _bytes_field(number: int, content: bytes) -> bytes:
    """Encode a field that contains a string or a message."""
    return _key(number, LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Encode a nonnegative integer, seven bits per byte, lowest bits first.

    The highest bit of a byte is 1 if more bytes follow.
    """
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
