"""What a guide is to look at, given as numbers: layers, heads, tokens."""

import operator
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array


def integers(name: str, given: Sequence[int]) -> tuple[int, ...]:
    """The numbers of a sequence; raises unless there are any, and they are integers."""
    try:
        numbers = tuple(operator.index(number) for number in given)
    except TypeError as error:
        raise ValueError(f"{name} must be a sequence of integers; got {given!r}.") from error
    if not numbers:
        raise ValueError(f"{name} must name at least one; got none.")
    return numbers


def chosen(name: str, numbers: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """The numbers as places from 0 on; None: all of them. As in Python, -1 is the last."""
    if numbers is None:
        return tuple(range(size))
    numbers = integers(name, numbers)
    wrong = [number for number in numbers if not -size <= number < size]
    if wrong:
        raise ValueError(f"{name} must lie from {-size} to {size - 1}; got {wrong}.")
    places = tuple(number % size for number in numbers)
    if len(set(places)) < len(places):
        raise ValueError(f"{name} must name each at most once; got {numbers}.")
    return places


def layers_of(array: Array, layers: Sequence[int] | None) -> Array:
    """The chosen layers, the second axis of an array."""
    places = chosen("layers", layers, array.shape[1])
    if places == tuple(range(array.shape[1])):
        return array
    return jnp.stack([array[:, place] for place in places], axis=1)
