"""Figure of the functions that heads of two-sided attention learn: factor f and bias g, by task.

The functions are computed from the stored parameters of the heads.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distattn_jax.models import METHODS, Sizes
from distattn_jax.plot import style
from distattn_jax.plot.head_positions import Curves, describe_heads
from distattn_jax.plot.style import GREY
from experiments.papers.formatting import experiment_title, method_title
from experiments.papers.results import Results
from experiments.papers.when_to_use import language_models
from experiments.papers.when_to_use.settings import BEST_FORMS, LEARNED

REACH = 32  # largest distance that the figure shows, in tokens
LOWEST = -10  # bias that the figure shows: it makes a weight e¹⁰ times smaller
CAUSAL = language_models.NAMES.values()


class Learned(NamedTuple):
    """Functions that the heads of one method have learned on one task, with all seeds.

    Attributes:
      title: Task and method.
      layers: For each layer, the curves of each function. Their heads are those of all seeds.
    """

    title: str
    layers: list[list[Curves]]


def list_learned(results: Results) -> list[Learned]:
    """Return the functions of each run of the best forms whose heads are stored."""
    found = []
    for experiment in LEARNED:
        for method in BEST_FORMS:
            leaves = results.part(experiment, "heads", method, "two_sided")
            if leaves:
                arrays = {name: np.asarray(values, np.float32) for name, values in leaves.items()}
                is_causal = experiment in CAUSAL
                layers = [*_evaluate_layers(method, arrays, is_causal=is_causal)]
                title = f"{experiment_title(experiment)}: {method_title(method)}"
                found.append(Learned(title, layers))
    return found


def _evaluate_layers(
    method: str, arrays: Mapping[str, np.ndarray], *, is_causal: bool
) -> Iterator[list[Curves]]:
    """Yield the curves of each layer.

    Args:
      method: Name of the method.
      arrays: Dict from the name of a parameter to an array of shape (seeds, layers, heads, ...).
      is_causal: True if no query attends to a later key.
    """
    seeds, layer_count, heads, *_ = next(iter(arrays.values())).shape
    make = METHODS[method].variant
    assert make is not None, "two-sided attention has parameters"
    # One module has the heads of all seeds.
    module = make(Sizes(heads=seeds * heads), rngs=nnx.Rngs(0))
    state = nnx.state(module, nnx.Param)
    names = nnx.traversals.flatten_mapping(nnx.to_pure_dict(state))
    for layer in range(layer_count):
        trained = {}
        for path in names:
            values = arrays[".".join(map(str, path))][:, layer]
            trained[path] = jnp.asarray(values.reshape(seeds * heads, *values.shape[2:]))
        nnx.replace_by_pure_dict(state, nnx.traversals.unflatten_mapping(trained))
        nnx.update(module, state)
        length = REACH + 1
        yield describe_heads(module(), seeds * heads, length, length, causal=is_causal).curves


def draw_learned(learned: list[Learned]) -> Figure:
    """Draw one row for each run, with one panel for each function and one thin line per head.

    The thick lines are the medians over the heads of a layer.
    """
    columns = max(len(curves) for run in learned for curves in run.layers)
    with style.use_style():
        figure, grid = style.make_panels(len(learned), columns, width=4.4, height=2.6)
        for row, run in enumerate(learned):
            panels, count = grid[row * columns : (row + 1) * columns], len(run.layers[0])
            for index, axes in enumerate(panels[:count]):
                _draw_panel(axes, [curves[index] for curves in run.layers])
            for axes in panels[count:]:
                axes.set_visible(False)
            panels[0].set_title(run.title, loc="left", fontweight="bold")
            panels[0].legend(loc="best")
        return style.finish_layout(figure)


def _draw_panel(axes: Axes, layers: list[Curves]) -> None:
    """Draw the heads of all layers, in a colour for each layer."""
    for number, curves in enumerate(layers):
        colour = colormaps["viridis"](0.8 * number / max(1, len(layers) - 1))
        axes.plot(curves.x, curves.y.T, color=colour, linewidth=0.6, alpha=0.4)
        median = np.median(curves.y, axis=0)
        axes.plot(curves.x, median, color=colour, linewidth=1.8, label=f"layer {number + 1}")
    if layers[0].baseline is not None:
        axes.axhline(layers[0].baseline, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if min(curves.y.min() for curves in layers) < LOWEST:
        axes.set_ylim(LOWEST, max(curves.y.max() for curves in layers) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(layers[0].x_label)
    axes.set_ylabel(layers[0].title)
