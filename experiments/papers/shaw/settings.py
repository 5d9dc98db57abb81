"""Experiments of the report: data sets, sizes of the model, methods and clipping distances.

The paper trains its base model and its big model on WMT 2014. Our runs instead use two smaller data
sets and two smaller models, `small` and `medium`. The name of an experiment contains the data set
and the size, such as `multi30k_small`. The name of an experiment of Table 2 also contains the
clipping distance, such as `multi30k_small_k4`. Such an experiment has one run, of the method
`relative_position`. The module `switched` reads runs that train several kinds of positions.
"""

DATA_SETS = {"multi30k": "Multi30k", "libreoffice": "LibreOffice help"}
SIZES = ("small", "medium")
DISTANCES = (0, 1, 2, 4, 16, 64, 256)
RELATIVE = "relative_position"

# Table 1: method -> kind of positions.
POSITIONS = {
    "vanilla": "absolute",
    RELATIVE: "relative",
    "relative_and_absolute": "relative and absolute",
}
# Experiments with the recipe of a published model of Multi30k (Wu et al. 2021), each with
# several learning rates or dropout rates -> where dropout is applied.
TINY = {"multi30k_tiny": "everywhere", "multi30k_tiny_rates": "of embeddings and residual sums"}

# Experiment -> source sentence. The report draws the position vectors of these experiments, and
# the attention between the words of the sentence and its translation.
SENTENCES = {
    "multi30k_small": "Two young girls are playing with a brown dog in the snow.",
    "libreoffice_small": "Click the cell where you want to insert the function.",
}


def experiment_name(data: str, size: str, distance: int | None = None) -> str:
    """Return the name of an experiment.

    Args:
      data: Name of the data set, a key of DATA_SETS.
      size: Size of the model, one of SIZES.
      distance: Clipping distance k of an experiment of Table 2. None for the other tables.
    """
    return f"{data}_{size}" + ("" if distance is None else f"_k{distance}")


def list_experiments() -> list[str]:
    """Return the names of all experiments of the report."""
    main = [experiment_name(data, size) for data in DATA_SETS for size in SIZES]
    sweep = [experiment_name(data, SIZES[0], k) for data in DATA_SETS for k in DISTANCES]
    return [*main, *sweep, *TINY]
