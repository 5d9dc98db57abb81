"""Arrays in an HTML page: attention weights as small integers, compressed and written as text.

A weight a is stored as the integer q = round(Q √(a / m)), where m is the largest weight of its map,
and Q is the largest integer, 255 for 8 bits. The page computes a = m (q / Q)². Because of the
square root, small weights have small errors: the error is at most about √(a m) / Q, which is at
most 0.4 % of m for 8 bits.
"""

import base64
import zlib
from typing import Any

import numpy as np

LEVELS = (255, 127, 63, 31, 15)  # tried in this order until the page is small enough


def quantise(maps: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert attention weights to integers from 0 to `levels`.

    Args:
      maps: Attention weights, at least 0, shape (..., T, S).
      levels: Largest integer Q, at most 255.

    Returns:
      The integer of each weight, shape (..., T, S), and the largest weight of each map, shape
      (...).
    """
    largest = maps.max(axis=(-2, -1))
    divisor = np.where(largest > 0, largest, 1)[..., None, None]
    integers = np.rint(levels * np.sqrt(maps / divisor))
    return integers.astype(np.uint8), largest


def pack(array: np.ndarray) -> dict[str, Any]:
    """Convert an array to a JSON object with its dtype, its shape and its compressed bytes.

    Args:
      array: Array to store. Arrays of other dtypes than uint8 are converted to float32.
    """
    if array.dtype != np.uint8:
        array = array.astype("<f4")
    compressed = zlib.compress(np.ascontiguousarray(array).tobytes())
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(compressed).decode("ascii"),
    }
