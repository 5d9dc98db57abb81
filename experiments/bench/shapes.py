"""Shapes of the inputs of the benchmark: named shapes, and shapes that a user types."""

from typing import NamedTuple

# Matrix products of the backward pass relative to the forward pass: five to two.
BACKWARD = 2.5
# Launching a smaller forward pass takes a noticeable part of its time on a GPU or TPU.
SMALL_FLOPS = 2e10
CALLS = 50  # attention calls in one timed program of a small shape


class Shape(NamedTuple):
    """Sizes of the inputs of a benchmark case.

    Attributes:
      batch: Batch size B.
      heads: Number of heads N.
      length: Number of queries L, which is also the number of keys.
      width: Width of a head H.
      calls: Number of attention calls inside one timed program. 0 means that nothing is timed.
    """

    batch: int
    heads: int
    length: int
    width: int
    calls: int = 1

    @property
    def flops(self) -> int:
        """Number of floating-point operations of a forward pass.

        A forward pass has two matrix products. A multiplication and an addition are two operations.
        All entries of the attention map are counted, so an implementation that skips entries
        appears to compute more operations per second.
        """
        return 4 * self.batch * self.heads * self.length**2 * self.width

    def __str__(self) -> str:
        return f"B{self.batch} N{self.heads} L{self.length} H{self.width}"


SHAPES = {
    "paper": Shape(64, 16, 512, 16, calls=CALLS),
    "bert": Shape(64, 12, 256, 64, calls=CALLS),
    "gpt2": Shape(12, 12, 1024, 64),
    "mid": Shape(8, 16, 2048, 64),
    "wide": Shape(4, 16, 4096, 128),
    "long": Shape(4, 16, 8192, 64),
    "xlong": Shape(1, 16, 32768, 64),
    "uneven": Shape(6, 10, 1999, 48),
}
CHECK_SHAPES = ("gpt2", "uneven")  # of `bench --check`: small enough for 8 GB of memory
DEFAULT_SHAPES = ("paper", "bert", "mid", "wide", "long", "xlong")  # of the benchmark's table
CPU_SHAPES = {
    "paper": Shape(2, 4, 64, 16),
    "bert": Shape(2, 4, 32, 64),
    "gpt2": Shape(1, 4, 48, 64),
    "mid": Shape(1, 4, 128, 64),
    "wide": Shape(1, 4, 96, 128),
    "long": Shape(1, 4, 192, 64),
    "xlong": Shape(1, 4, 256, 64),
    "uneven": Shape(1, 2, 99, 48),
}


def parse_shape(text: str) -> Shape:
    """Return the shape of a text "B,T,N,H", e.g. "8,512,16,64".

    Raise a ValueError if the text is something else.
    """
    parts = text.split(",")
    are_numbers = all(part.strip().isdecimal() for part in parts)
    if len(parts) != 4 or not are_numbers or not all(map(int, parts)):
        advice = " Use --shapes for shapes that have names." if text in SHAPES else ""
        raise ValueError(
            "shape must be B,T,N,H, four whole numbers above 0: batch size, tokens, heads, width "
            f"of a head, e.g. 8,512,16,64; got {text!r}.{advice}"
        )
    batch, length, heads, width = map(int, parts)
    return Shape(batch, heads, length, width)


def name_shape(shape: Shape) -> str:
    """Return the name of a shape that a user typed: "B,T,N,H"."""
    return f"{shape.batch},{shape.length},{shape.heads},{shape.width}"


def choose_calls(shape: Shape) -> Shape:
    """Return the shape with `CALLS` calls in one timed program if the shape is small."""
    return shape._replace(calls=CALLS if shape.flops < SMALL_FLOPS else 1)


def describe_shape(name: str, shape: Shape) -> tuple[str, str]:
    """Return a title and a subtitle for a shape, e.g. ("long", "B4 N16 L8192 H64").

    On a CPU, a smaller shape replaces the shape of this name. The title is then the sizes of the
    smaller shape, and the subtitle is "instead of" and the name. The title of a shape without a
    name is "own shape".
    """
    sizes = str(shape)
    if name not in SHAPES:
        return "own shape", sizes
    return (name, sizes) if sizes == str(SHAPES[name]) else (sizes, f"instead of {name}")
