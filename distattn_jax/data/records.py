"""Examples on disk, each read when it is asked for."""

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2


class Records:
    """The examples in array_record files that TFDS wrote, by their numbers.

    TFDS has such a source, `as_data_source`, but a record at random costs that one a pass over the
    index of its file, and decoding takes longer than reading: in sum ten times as long.

    Args:
      files: names, and the number of examples in each.
      decode: makes an example of its features. They must be stored as bytes: texts, and tensors
        whose encoding is bytes.
    """

    def __init__(
        self, files: Sequence[tuple[str, int]], decode: Callable[[Mapping[str, bytes]], Any]
    ):
        self._names = [name for name, _ in files]
        self._ends = list(itertools.accumulate(count for _, count in files))
        self._decode = decode
        self._reader = functools.cache(_reader)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(f"i must be in 0 .. {len(self) - 1}; got {i}.")
        file = bisect.bisect_right(self._ends, i)
        place = i - (self._ends[file - 1] if file else 0)
        # As a range: given as a list, places cost as much as the file has records.
        (record,) = self._reader(self._names[file]).read(place, place + 1)
        features = tf_example_pb2.Example.FromString(record).features.feature
        return self._decode({name: features[name].bytes_list.value[0] for name in features})

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[i] for i in indices]


def _reader(name: str) -> Any:
    return array_record_module.ArrayRecordReader(name, options="readahead_buffer_size:0")
