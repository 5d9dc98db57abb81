"""Settings of the DA-Transformer paper: compared methods, data sets, and the search.

The paper publishes these hyperparameters: GloVe vectors of width 300, 16 heads of width 16, one
layer, and Adam with learning rate 1e-3. The dropout rate, the number of epochs, and the initial
values and learning rate of w and v (distance weight and sigmoid shape of a head) are not published.

The search tries 12 settings with 3 seeds each on the validation set. All methods use the same grid.
Methods without w and v have only 3 different settings in the grid, fewer than DA-Transformer. For
each seed, the epoch with the best validation score is kept.
"""

import dataclasses
from typing import Any

from experiments.recipes.ag import METHODS as ROWS

__all__ = ["ADJUSTMENTS", "MAPPINGS", "METRICS", "OURS", "ROWS", "search_config"]

OURS = "distance_aware"
CLASSIFICATION = ("accuracy", "macro_f")
RANKING = ("auc", "mrr", "ndcg@5", "ndcg@10")
# Metrics of Tables 3 to 5 and Figure 3, by experiment. The first one is the criterion.
METRICS = {
    **dict.fromkeys(("ag", "amazon", "sst", "snli"), CLASSIFICATION),
    "amazon_rating": ("rmse", "mae"),
    **dict.fromkeys(("mind", "mind_made_up"), RANKING),
}
MAPPINGS = tuple(f"{OURS}_{name}" for name in ("clip", "linear", "exponent", "sigmoid"))
ADJUSTMENTS = tuple(f"{OURS}_{name}" for name in ("late_add", "late_multiply", "early_add"))

DROPOUT_RATES = (0.2, 0.35, 0.5)
INITIAL_WEIGHTS = (0.1, 0.5)
DISTANCE_RATES = (1.0, 10.0)
SEARCH_SEEDS = 3


def search_config(config: Any) -> Any:
    """Return the config of a recipe, changed so that it searches a hyperparameter grid.

    The grid has dropout rates, initial values of the distance weights w, and learning rates of w
    and the sigmoid shapes v. The search has 3 seeds and does not evaluate the test set.
    """
    return dataclasses.replace(
        config,
        name=config.name + "_search",
        seeds=SEARCH_SEEDS,
        model=dataclasses.replace(
            config.model,
            dropout_rate=DROPOUT_RATES,
            initial_weight=INITIAL_WEIGHTS,
            distance_rate=DISTANCE_RATES,
        ),
        output=dataclasses.replace(config.output, test=False),
    )
