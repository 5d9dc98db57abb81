"""Event files, read by a decoder that shares no code with the writer."""

import math
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.train.tensorboard import EventWriter, crc32c


def bitwise_crc32c(data):
    """Divide by the Castagnoli polynomial, one bit at a time."""
    remainder = 0xFFFFFFFF
    for bit in (byte >> i & 1 for byte in data for i in range(8)):
        carry = (remainder ^ bit) & 1
        remainder = remainder >> 1 ^ (0x82F63B78 * carry)
    return remainder ^ 0xFFFFFFFF


def is_masked_checksum(checksum, data):
    unmasked = (struct.unpack("<I", checksum)[0] - 0xA282EAD8) % 2**32
    return (unmasked << 15 | unmasked >> 17) % 2**32 == bitwise_crc32c(data)


def read_varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at


def read_fields(data):
    """Yield (number, content) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            content, at = read_varint(data, at)
        else:
            size, at = read_varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            content, at = data[at : at + size], at + size
            assert len(content) == size
        yield key >> 3, content


def read_events(path):
    """Yield (wall time, step, version, {tag: value}) of each record, and check its checksums."""
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert is_masked_checksum(data[8:12], data[:8])
        record, checksum = data[12 : 12 + size], data[12 + size : 16 + size]
        data = data[16 + size :]
        assert is_masked_checksum(checksum, record)
        event = dict(read_fields(record))
        values = [dict(read_fields(value)) for _, value in read_fields(event.get(5, b""))]
        yield (
            struct.unpack("<d", event[1])[0],
            event.get(2, 0),
            event.get(3),
            {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values},
        )


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_checksums_equal_published_values(data, checksum):
    assert crc32c(data) == checksum
    assert bitwise_crc32c(data) == checksum


def test_events_are_read_as_they_were_written(tmp_path):
    tag = "größe/" + "long " * 40
    clock = iter([1.0e9, 1.0e9 + 0.25, 1.0e9 + 1.5, 1.0e9 + 2.0]).__next__
    with EventWriter(tmp_path / "run", clock=clock) as writer:
        writer.write(0, {"loss": 2.5, tag: -1e-3})
        writer.write(300_000_000_000, {"loss": np.float32(0.5), "accuracy": jnp.asarray(0.75)})
    (path,) = (tmp_path / "run").iterdir()
    assert "tfevents" in path.name
    assert list(read_events(path)) == [
        (1.0e9 + 0.25, 0, b"brain.Event:2", {}),
        (1.0e9 + 1.5, 0, None, {"loss": 2.5, tag: float(np.float32(-1e-3))}),
        (1.0e9 + 2.0, 300_000_000_000, None, {"loss": 0.5, "accuracy": 0.75}),
    ]


def test_values_that_are_not_finite_in_float32_are_written(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.write(1, {"nan": math.nan, "infinite": -math.inf, "beyond": 1e300})
    _, (_, _, _, values) = read_events(writer.path)
    assert math.isnan(values.pop("nan"))
    assert values == {"infinite": -math.inf, "beyond": math.inf}


def test_flushed_events_can_be_read_before_the_file_is_closed(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.write(7, {"loss": 1.0})
        writer.flush()
        assert [step for _, step, _, _ in read_events(writer.path)] == [0, 7]
    with pytest.raises(ValueError, match="closed"):
        writer.write(8, {"loss": 1.0})


def test_two_writers_of_the_same_second_write_two_files(tmp_path):
    with EventWriter(tmp_path, clock=lambda: 5.0) as writer:
        with EventWriter(tmp_path, clock=lambda: 5.0):
            assert len(list(tmp_path.iterdir())) == 2
        with pytest.raises(ValueError, match="step must be at least 0; got -1"):
            writer.write(-1, {"loss": 1.0})
