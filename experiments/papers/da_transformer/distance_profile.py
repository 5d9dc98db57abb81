"""How far heads look: the share of attention that falls at each distance."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    QUIET,
    checked,
    head_colours,
    method_colours,
    panels,
    settled,
    styled,
)


def distance_profile(
    profiles: Mapping[str, np.ndarray | Array],
    *,
    uniform: np.ndarray | Array,
    weights: Mapping[str, np.ndarray | Array] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """The share of attention at each distance |i - j|, on a logarithmic axis.

    Distance-aware heads have a line each, blue for w < 0 and orange for w > 0, darker the greater
    |w| is. Of another method the mean over heads is drawn.

    Args:
      profiles: method -> (N, K): of the attention that a head gives, the share that falls at the
        distances 0 to K - 1, a mean over queries and texts.
      uniform: (K,), the same for attention that treats all keys alike.
      weights: method -> w (N,) of its distance-aware heads.
      labels: what the legend calls a method; one without a label is called by its name.
    """
    weights, labels = weights or {}, labels or {}
    unknown = [method for method in weights if method not in profiles]
    if not profiles:
        raise ValueError("profiles must hold at least one method; got none.")
    if unknown:
        raise ValueError(f"weights must be of methods in {list(profiles)}; got {list(weights)}.")
    uniform = _shares("uniform", uniform, ("K",))
    distances = np.arange(len(uniform))
    colours = method_colours(profiles)
    handles: dict[str, Line2D] = {}
    with styled():
        figure, (axes,) = panels(1, 1, width=6.4, height=3.2)
        for method, given in profiles.items():
            of_heads = _shares(f"profiles[{method!r}]", given, ("N", len(uniform)))
            label = labels.get(method, method.replace("_", " "))
            if method not in weights:
                mean = of_heads.mean(0)
                line = axes.plot(distances, mean, "--", color=colours[method], zorder=3)[0]
                handles[f"{label},\nmean of {_heads(len(of_heads))}"] = line
                continue
            weight = checked(f"weights[{method!r}]", weights[method], (len(of_heads),))
            shades = head_colours(weight)
            lines = [
                axes.plot(distances, shares, color=shade, linewidth=1.1)[0]
                for shares, shade in zip(of_heads, shades, strict=True)
            ]
            for kind, of_kind in (("local ($w<0$)", weight < 0), ("global ($w>0$)", weight >= 0)):
                if of_kind.any():
                    darkest = np.argmax(np.where(of_kind, np.abs(weight), -1))
                    handles[f"{label},\n{kind}, {_heads(of_kind.sum())}"] = lines[darkest]
        handles["uniform attention"] = axes.plot(distances, uniform, ":", color=QUIET, zorder=3)[0]
        axes.set(xlabel="distance $|i-j|$", ylabel="share of attention", yscale="log")
        axes.set_xlim(0, max(len(distances) - 1, 1))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right center",
            labelspacing=0.8,
            title="darker: greater $|w|$" if weights else None,
            title_fontsize=8,
        )
        return settled(figure)


def _shares(name: str, array: np.ndarray | Array, shape: tuple[str | int, ...]) -> np.ndarray:
    """`checked`, and above 0 somewhere, below it nowhere."""
    shares = checked(name, array, shape)
    if not (shares.min() >= 0 and shares.max() > 0):
        span = f"{shares.min():g} to {shares.max():g}"
        raise ValueError(f"{name} must be shares, none below 0 and not all 0; got {span}.")
    return shares


def _heads(count: int | np.integer) -> str:
    return f"{count} head{'' if count == 1 else 's'}"
