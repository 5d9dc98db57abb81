"""Random access to examples on disk, without loading a whole file."""

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2


class RecordSource:
    """Sequence of the examples in array_record files that TensorFlow Datasets (TFDS) wrote.

    `source[i]` reads example i from disk. This is ten times as fast as `as_data_source` of TFDS.

    Args:
      files: For each file, a pair (name, number of examples).
      decode: Function that converts a stored example to the value of `source[i]`. Its argument is a
        dict from the name of each feature to its bytes. All features must be stored as bytes, i.e.
        be texts or tensors with the encoding "bytes".
    """

    def __init__(
        self, files: Sequence[tuple[str, int]], decode: Callable[[Mapping[str, bytes]], Any]
    ):
        self._names = [name for name, _ in files]
        self._ends = list(itertools.accumulate(count for _, count in files))
        self._decode = decode
        self._get_reader = functools.cache(_open_reader)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(f"i must be in 0 .. {len(self) - 1}; got {i}.")
        file = bisect.bisect_right(self._ends, i)
        record_number = i - (self._ends[file - 1] if file else 0)
        # Reading a range is fast. Reading a list of numbers scans all records of the file.
        (record,) = self._get_reader(self._names[file]).read(record_number, record_number + 1)
        features = tf_example_pb2.Example.FromString(record).features.feature
        return self._decode({name: features[name].bytes_list.value[0] for name in features})

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[i] for i in indices]


def _open_reader(name: str) -> Any:
    """Open an array_record file without read-ahead, because examples are read in random order."""
    return array_record_module.ArrayRecordReader(name, options="readahead_buffer_size:0")
