"""Draw the figures of kernels.md: `python docs/draw_kernels.py`."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, FancyBboxPatch, Patch, Rectangle
from matplotlib.patheffects import withStroke

from distattn_jax import plot
from distattn_jax.attention import learnable_sigmoid
from distattn_jax.attention.fused.schedule import ScheduleInputs, schedule_blocks
from distattn_jax.attention.fused.tile_runs import Distinctions, TileKind
from distattn_jax.attention.fused.visible_columns import Window

FOLDER = Path(__file__).parent
DPI = 120
WIDTH = 8.4  # inches
LENGTH, TILE = 4096, 256  # tokens; rows and columns of a drawn tile
BLOCKS = LENGTH // TILE
RADIUS = 420  # tokens: beyond it, a head with |w| = 0.03 is saturated
INK, PALE = plot.PALETTE["black"], "#e4e4e4"
SHADES = "cividis"  # readable with all kinds of colour vision
KINDS = {
    "PLAIN: all pairs visible": plot.PALETTE["vermilion"],
    "MASKED: some pairs hidden": plot.PALETTE["blue"],
    "FAR: f is a constant": plot.PALETTE["sky"],
    "ZERO: all scores are 0": plot.PALETTE["purple"],
    "not visited: one sum": PALE,
    "not visited: hidden": "white",
}
PLAIN, MASKED, FAR, ZERO, SUMMED, HIDDEN = KINDS.values()


def draw_box(axes: Axes, x: float, y: float, colour: str, **options: Any) -> None:
    """Draw one square of a map, with a white edge. `options` replace the defaults."""
    settings = {"width": 1, "height": 1, "facecolor": colour, "edgecolor": "white", "lw": 0.6}
    axes.add_patch(Rectangle((x, y), **{**settings, **options}))


def show_map(axes: Axes, rows: int, columns: int, **labels: str) -> None:
    """Show rows from top to bottom without ticks, with square entries."""
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[], **labels)


def outline(axes: Axes, x: float, y: float, width: float, height: float) -> None:
    """Draw a black frame with white edges, visible on every colour, around a part of a map."""
    frame = Rectangle((x, y), width, height, facecolor="none", edgecolor=INK, lw=1.6, zorder=4)
    frame.set_path_effects([withStroke(linewidth=3.2, foreground="white")])
    frame.set_clip_on(False)
    axes.add_patch(frame)


def write_numbers(axes: Axes, numbers: np.ndarray, shades: np.ndarray) -> None:
    """Fill a map with coloured entries, from 0 (dark) to 1 (light), and write a number into each.

    Entries that are NaN in `shades` are pale.
    """
    axes.imshow(shades, cmap=SHADES, vmin=0, vmax=1)
    for (row, column), number in np.ndenumerate(numbers):
        shade = shades[row, column]
        if np.isnan(shade):
            draw_box(axes, column - 0.5, row - 0.5, PALE)
        colour = plot.PALETTE["black"] if np.isnan(shade) or shade > 0.5 else "white"
        axes.text(column, row, str(number), ha="center", va="center", fontsize=6.5, color=colour)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def connect(left: Axes, start: tuple[float, float], right: Axes, end: tuple[float, float]) -> None:
    """Draw an arrow from a point of one panel to a point of another."""
    arrow = ConnectionPatch(
        start, end, "data", "data", axesA=left, axesB=right, arrowstyle="-|>", color=INK, lw=1.2
    )
    left.figure.add_artist(arrow)


def find_tiles(**inputs: Any) -> dict[tuple[int, int], TileKind]:
    """Return the kind of each tile (block of queries, block of keys) that the kernels visit."""
    visits_zero_tiles = inputs.pop("visits_zero_tiles", False)
    lengths = jnp.array([LENGTH], jnp.int32)
    defaults = {"query_lengths": lengths, "key_lengths": lengths, "full_keys": LENGTH}
    schedule = schedule_blocks(
        ScheduleInputs(offset=jnp.zeros(1, jnp.int32), **{**defaults, **inputs}),
        LENGTH,
        TILE,
        TILE,
        is_transposed=False,
        distinctions=Distinctions(far="radius" in inputs),
        visits_zero_tiles=visits_zero_tiles,
    )
    runs = np.broadcast_to(schedule.runs[0, 0], (BLOCKS, *schedule.runs.shape[3:]))
    return {
        (i, j): kind
        for i in range(BLOCKS)
        for kind, (start, end) in zip(schedule.kinds, runs[i], strict=True)
        for j in range(start, end)
    }


def colour_tile(kind: TileKind) -> str:
    """Return the colour of a kind of tile."""
    return ZERO if kind.is_zero else MASKED if kind.is_masked else FAR if kind.is_far else PLAIN


def draw_tiles() -> Figure:
    """Draw the kinds of tiles under several restrictions, as the real schedule finds them."""
    segments = jnp.searchsorted(jnp.array([1400, 2700]), jnp.arange(LENGTH), side="right")[None]
    near = {"radius": jnp.full((1, 1), RADIUS)}
    local = {**near, "is_zero_beyond_radius": jnp.ones((1, 1), bool)}
    maps: dict[str, dict[str, Any]] = {
        "lengths": {"key_lengths": jnp.array([3500]), "full_keys": None},
        "causal mask": {"window": Window(right=0)},
        "window": {"window": Window(600, 600)},
        "segments": {"query_segments": segments, "key_segments": segments},
        "global head, w > 0": near,
        "local head, w < 0": local,
        "causal local head": {**local, "window": Window(right=0)},
        "local head, dropout": {**local, "visits_zero_tiles": True},
    }
    with plot.use_style():
        figure = Figure((WIDTH, 5), layout="constrained")
        for axes, (title, inputs) in zip(figure.subplots(2, 4).flat, maps.items(), strict=True):
            visible = find_tiles(**{**inputs, "is_zero_beyond_radius": None})
            visited = {tile: colour_tile(kind) for tile, kind in find_tiles(**inputs).items()}
            for (i, j), colour in {**dict.fromkeys(visible, SUMMED), **visited}.items():
                draw_box(axes, j, i, colour)
            show_map(axes, BLOCKS, BLOCKS, title=title, xlabel="keys", ylabel="queries")
            axes.spines[:].set_visible(True)
        handles = [
            Patch(facecolor=colour, edgecolor=INK if colour == HIDDEN else colour, label=label)
            for label, colour in KINDS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_saturation() -> Figure:
    """Draw the tiles of one block, f by the distance, and the scored pairs by the length."""
    with plot.use_style():
        figure = Figure((WIDTH, 4.6), layout="constrained")
        panels = figure.subplot_mosaic([["row", "row"], ["f", "pairs"]], height_ratios=[1, 3.4])
        _draw_block(panels["row"])
        _draw_function(panels["f"])
        _draw_pairs(panels["pairs"])
    return figure


def _draw_block(axes: Axes) -> None:
    """Draw the tiles of one block of queries in a local head."""
    block, reach = BLOCKS // 2, 2
    first, last = block - reach, block + reach + 1
    for j in range(first, last):
        draw_box(axes, j, 0, PLAIN)
    for start, end in ((0, first), (last, BLOCKS)):
        draw_box(axes, start, 0, SUMMED, width=end - start)
        text = "all scores are 0: all weights are e⁰\none sum of values replaces the tiles"
        axes.text((start + end) / 2, 0.5, text, ha="center", va="center")
    box = {"facecolor": PLAIN, "edgecolor": "none", "pad": 2}
    text = "visited tile by tile"
    axes.text(block + 0.5, 0.5, text, ha="center", va="center", color="white", bbox=box)
    axes.set(xlim=(0, BLOCKS), ylim=(1, 0), xticks=[block + 0.5], yticks=[])
    axes.set_xticklabels(["position of the queries"])
    axes.set_title("keys of one block of queries, in a local head (w < 0)")
    axes.spines[:].set_visible(False)


def _draw_function(axes: Axes) -> None:
    """Draw the coefficient f against the distance."""
    distance = jnp.arange(0, 600)
    for w, colour in ((0.03, plot.PALETTE["vermilion"]), (-0.03, plot.PALETTE["blue"])):
        axes.plot(distance, learnable_sigmoid(w * distance, 1.0), color=colour, label=f"w = {w}")
    axes.axvspan(RADIUS, 600, color="#f0f0f0", zorder=0)
    axes.text(510, 1.9, "constant", ha="center")
    axes.set(xlabel="distance |i - j|", ylabel="coefficient f", xlim=(0, 600), ylim=(0, None))
    axes.set_xticks([0, 100, 200, 300, RADIUS, 500, 600], [0, 100, 200, 300, "R*", 500, 600])
    axes.legend()


def _draw_pairs(axes: Axes) -> None:
    """Draw the number of pairs that a local head scores against the length."""
    lengths = 2.0 ** np.arange(9, 16)
    axes.plot(lengths, lengths**2, "o-", color=plot.PALETTE["black"], label="all pairs: L²")
    pairs = np.minimum(lengths**2, lengths * 2 * (RADIUS + TILE))
    label = "local head: L · 2 (R* + tile)"
    axes.plot(lengths, pairs, "o-", color=plot.PALETTE["blue"], label=label)
    axes.set(xscale="log", yscale="log", xlabel="length L", ylabel="scored pairs")
    axes.set_xticks(lengths, [f"{n:.0f}" for n in lengths], rotation=30)
    axes.minorticks_off()
    axes.legend()


def draw_tables() -> Figure:
    """Draw a function of i - j as a map of pairs and as a table, with the part of one tile."""
    size, tile, (row, column) = 10, 4, (4, 1)
    relative = np.arange(size)[:, None] - np.arange(size)[None, :]
    numbers = np.arange(1 - size, size)[None]

    def function(relative: np.ndarray) -> np.ndarray:
        return np.exp(-np.square((relative - 2) / 5))

    derivative = function(numbers) * np.square(numbers - 2)  # with respect to the width
    tables = {
        "table of f(i - j): the framed tile reads the framed part": function(numbers),
        "one more table for each parameter θ: ∂f/∂θ": derivative / derivative.max(),
    }
    with plot.use_style():
        figure = Figure((WIDTH, 3.1), layout="constrained")
        panels = figure.subplot_mosaic("mff;mgg")
        write_numbers(panels["m"], relative, function(relative))
        panels["m"].set(title="i - j of each pair", xlabel="key j", ylabel="query i")
        outline(panels["m"], column - 0.5, row - 0.5, tile, tile)
        first = row - column - tile + size  # place of the smallest i - j of the tile in a table
        for name, (title, shades) in zip("fg", tables.items(), strict=True):
            write_numbers(panels[name], numbers, shades)
            panels[name].set(title=title)
            outline(panels[name], first - 0.5, -0.5, 2 * tile - 1, 1)
    return figure


def draw_relations() -> Figure:
    """Draw the relations of Shaw et al.: products before, tiles in, and weights after a kernel."""
    length, clip, tile, row = 24, 3, 4, 9
    relations = np.arange(2 * clip + 1)
    query, key = np.indices((length, length))
    relation = np.clip(key - query, -clip, clip) + clip
    with plot.use_style():
        figure = Figure((WIDTH, 4.3), layout="constrained")
        products, scores, weights = figure.subplots(1, 3, width_ratios=[1, 2.6, 1])
        for axes in (products, weights):
            axes.imshow(np.tile(relations, (length, 1)), cmap=SHADES)
            ends = ["0", *[""] * (2 * clip - 1), "2k"]
            axes.set(xlabel="relation r", yticks=[])
            axes.set_xticks(relations, ends)
            outline(axes, -0.5, row - 0.5, 2 * clip + 1, 1)
        products.set(title="before the kernel:\nP[i, r] = qᵢ · aᵣ", ylabel="query i")
        weights.set_title("after the kernel:\nweights W[i, r]")
        scores.imshow(relation, cmap=SHADES)
        for i in range(0, length, tile):
            for j in range(0, length, tile):
                if np.ptp(relation[i : i + tile, j : j + tile]):
                    box = {"width": tile, "height": tile, "edgecolor": PLAIN, "lw": 2}
                    draw_box(scores, j - 0.5, i - 0.5, "none", **box)
        scores.text(17.5, 4, "far tiles: relation 2k", ha="center", color=INK)
        scores.text(6, 19.5, "far tiles: relation 0", ha="center", color="white")
        scores.set(title="in the kernel: r of each pair\nframes: tiles of the band")
        scores.set(xlabel="key j", xticks=[], yticks=[])
        outline(scores, -0.5, row - 0.5, length, 1)
        connect(products, (2 * clip + 0.5, row), scores, (-0.5, row))
        connect(scores, (length - 0.5, row), weights, (-0.5, row))
    return figure


def draw_skew() -> Figure:
    """Draw how the products with position vectors become the entries of a tile."""
    size = 8
    diagonal = np.arange(size)[:, None] - np.arange(size)[None, :] + size
    columns = np.tile(np.arange(2 * size), (size, 1))
    first = np.arange(size)[:, None] + 1
    is_needed = (columns >= first) & (columns < first + size)
    with plot.use_style():
        figure = Figure((WIDTH, 2.9), layout="constrained")
        products, tile = figure.subplots(1, 2, width_ratios=[2, 1.12])
        shades = columns / (2 * size - 1)
        write_numbers(products, columns, np.where(is_needed, shades, np.nan))
        title = "1. multiply: each query and each vector of the tile"
        products.set(title=title, xlabel="position vector", ylabel="query i")
        write_numbers(tile, diagonal, diagonal / (2 * size - 1))
        tile.set(title="2. select: number i - j + 8", xlabel="key j", ylabel="query i")
        row = size - 1
        outline(products, row + 0.5, row - 0.5, size, 1)
        outline(tile, -0.5, row - 0.5, size, 1)
        connect(products, (row + size + 0.5, row), tile, (-0.5, row))
    return figure


def draw_backward() -> Figure:
    """Draw the three passes of the backward pass: by queries, by keys and by diagonals."""
    size, block = 9, (3, 4)
    passes: dict[str, tuple[Callable[[int, int], bool], str]] = {
        "1. query_gradient": (
            lambda i, j: i in block,
            "queries stay, keys arrive\ngives dQ, D and gradients of parameters",
        ),
        "2. key_gradient": (
            lambda i, j: j in block,
            "keys stay, queries arrive\ngives dK and dV",
        ),
        "3. position_gradient": (
            lambda i, j: j - i in (1, 2),
            "diagonals stay, queries and keys arrive\ngives dR (Transformer-XL on GPUs)",
        ),
    }
    middle = block[1]
    arrows = (((0.3, middle), (size - 0.3, middle)), ((middle, 0.3), (middle, size - 0.3)))
    with plot.use_style():
        figure = Figure((WIDTH, 3.4), layout="constrained")
        for axes, (title, (is_visited, text)), (start, end) in zip(
            figure.subplots(1, 3),
            passes.items(),
            (*arrows, ((2.2, 0.7), (size - 0.4, size - 1.9))),
            strict=True,
        ):
            for i, j in np.ndindex(size, size):
                draw_box(axes, j, i, FAR if is_visited(i, j) else PALE)
            axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.8})
            show_map(axes, size, size, title=title, ylabel="queries", xlabel=f"keys\n\n{text}")
            axes.spines[:].set_visible(False)
    return figure


def draw_call() -> Figure:
    """Draw the modules that a call passes, from `attention` to the kernels."""
    steps = {  # by column and row
        (0, 0): ("call.py", "checks the arguments"),
        (1, 0): ("implementations.py", "chooses by call\nand platform"),
        (2, 0): ("fused_kernels.py", "kernels for GPUs or TPUs,\nand what they support"),
        (3, 0): ("fused/mesh.py", "divides examples and\nheads among devices"),
        (3, 1): ("fused/attend.py", "makes a plan and\npadded operands"),
        (2, 1): ("fused/derivative.py", "custom derivative:\nforward and backward"),
        (1, 1): ("fused/kernel_calls.py", "what each kernel reads,\nvisits and returns"),
        (0, 1): ("fused/gpu, fused/tpu", "the kernels of\none type of chip"),
    }
    beside = {  # with the place of the step that each of them belongs to
        (0, -1): ("attention(...)", "query, key, value\nand a variant", (0, 0)),
        (1, -1): ("reference, xla, cudnn", "the other\nimplementations", (1, 0)),
        (3, 2): (
            "fused/variants/*.py",
            "kernel view of the variant:\nscoring and its arrays",
            (3, 1),
        ),
        (2, 2): ("fused/saturation.py", "radius R* of each head", (2, 1)),
        (1, 2): ("fused/schedule.py", "kinds and runs of tiles", (1, 1)),
    }
    with plot.use_style():
        figure = Figure((WIDTH, 4.3))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.5, 3.5), ylim=(2.45, -1.45))
        axes.axis("off")
        for place, (name, text) in steps.items():
            _draw_step(axes, place, name, text, plot.PALETTE["sky"])
        for start, end in itertools.pairwise(steps):
            _draw_arrow(axes, start, end)
        for place, (name, text, step) in beside.items():
            _draw_step(axes, place, name, text, PALE)
            _draw_arrow(axes, *((step, place) if name.startswith("reference") else (place, step)))
    return figure


def _draw_step(axes: Axes, place: tuple[int, int], name: str, text: str, colour: str) -> None:
    """Draw a box with the name of a module and its purpose."""
    (x, y), width, height = place, 0.84, 0.62
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=colour,
        alpha=0.45,
        edgecolor=INK,
        lw=0.8,
    )
    axes.add_patch(box)
    axes.text(x, y - 0.16, name, ha="center", va="center", fontsize=8.5, weight="bold")
    axes.text(x, y + 0.1, text, ha="center", va="center", fontsize=8)


def _draw_arrow(axes: Axes, start: tuple[int, int], end: tuple[int, int]) -> None:
    """Draw an arrow from the edge of one box to the edge of its neighbour."""
    dx, dy = np.sign(np.subtract(end, start))
    points = [
        (x + side * dx * 0.42, y + side * dy * 0.31) for (x, y), side in ((start, 1), (end, -1))
    ]
    axes.annotate(
        "", points[1], points[0], arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2}
    )


if __name__ == "__main__":
    FIGURES = {
        "tiles": draw_tiles,
        "saturation": draw_saturation,
        "tables": draw_tables,
        "relations": draw_relations,
        "skew": draw_skew,
        "backward": draw_backward,
        "call": draw_call,
    }
    for name, draw in FIGURES.items():
        plot.save(draw(), FOLDER / f"{name}.png", dpi=DPI)
