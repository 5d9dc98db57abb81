"""Figure of the share of attention at each distance between query and key."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distattn_jax.plot.style import (
    GREY,
    check_array,
    finish_layout,
    head_colours,
    make_panels,
    method_colours,
    use_style,
)


def distance_profile(
    profiles: Mapping[str, np.ndarray | Array],
    *,
    uniform: np.ndarray | Array,
    weights: Mapping[str, np.ndarray | Array] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Plot the share of attention at each distance |i - j|, with a logarithmic vertical axis.

    Each distance-aware head has its own line: blue for a distance weight w < 0, orange for w > 0,
    darker for larger |w|. A method without distance weights has a single line, the mean over heads.

    Args:
      profiles: For each method, the shares of attention at distances 0 to K - 1, averaged over
        queries and texts, shape (N heads, K).
      uniform: Shares of attention at the same distances if all keys had equal weights, shape (K,).
      weights: For each distance-aware method, the distance weights w of its heads, shape (N,).
      labels: Legend entries by method. A method without an entry appears under its own name.
    """
    weights, labels = weights or {}, labels or {}
    if not profiles:
        raise ValueError("profiles must hold at least one method; got none.")
    if any(method not in profiles for method in weights):
        raise ValueError(f"weights must be of methods in {list(profiles)}; got {list(weights)}.")
    uniform = _check_shares("uniform", uniform, ("K",))
    distances = np.arange(len(uniform))
    colours = method_colours(profiles)
    handles: dict[str, Line2D] = {}
    with use_style():
        figure, (axes,) = make_panels(1, 1, width=6.4, height=3.2)
        for method, profile in profiles.items():
            heads = _check_shares(f"profiles[{method!r}]", profile, ("N", len(uniform)))
            label = labels.get(method, method.replace("_", " "))
            if method not in weights:
                mean = heads.mean(0)
                line = axes.plot(distances, mean, "--", color=colours[method], zorder=3)[0]
                handles[f"{label},\nmean of {_count_heads(len(heads))}"] = line
                continue
            weight = check_array(f"weights[{method!r}]", weights[method], (len(heads),))
            lines = [
                axes.plot(distances, shares, color=colour, linewidth=1.1)[0]
                for shares, colour in zip(heads, head_colours(weight), strict=True)
            ]
            for kind, chosen in (("local ($w<0$)", weight < 0), ("global ($w>0$)", weight >= 0)):
                if chosen.any():
                    darkest = np.argmax(np.where(chosen, np.abs(weight), -1))
                    handles[f"{label},\n{kind}, {_count_heads(chosen.sum())}"] = lines[darkest]
        handles["uniform attention"] = axes.plot(distances, uniform, ":", color=GREY, zorder=3)[0]
        axes.set(xlabel="distance $|i-j|$", ylabel="share of attention", yscale="log")
        axes.set_xlim(0, max(len(distances) - 1, 1))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside right center",
            labelspacing=0.8,
            title="darker: larger $|w|$" if weights else None,
            title_fontsize=8,
        )
        return finish_layout(figure)


def _check_shares(name: str, array: np.ndarray | Array, shape: tuple[str | int, ...]) -> np.ndarray:
    """Return the array as float64.

    Raise a ValueError if the array has another shape, has negative values, or is all 0.
    """
    shares = check_array(name, array, shape)
    if not (shares.min() >= 0 and shares.max() > 0):
        span = f"{shares.min():g} to {shares.max():g}"
        raise ValueError(f"{name} must be shares, none below 0 and not all 0; got {span}.")
    return shares


def _count_heads(count: int | np.integer) -> str:
    """Format a number of heads as "1 head" or "2 heads"."""
    return f"{count} head{'' if count == 1 else 's'}"
