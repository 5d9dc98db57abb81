"""Settings of the attention-guiding paper: compared guides, and the search.

The paper (Wang et al. 2022, section 3.3) publishes these settings: at most 256 tokens, Adam with
learning rate 1e-5, and 5, 20 and 5 epochs on MultiNLI, MedNLI and Cross-genre-IR. The loss weights
of the map discrimination guide (MDG) and of the pattern decorrelation guide (PDG) were searched
among 0.1, 0.01, 0.001 and 0.0001. The loss weights of the other guides are not published.

Our search uses the validation set and 3 seeds. It tries 16 pairs of weights for attention guiding
(AG, which is MDG and PDG together), 4 weights for each guide with a single weight, and one setting
without a guide. AG therefore has more settings than other guides. The 48 models of AG are trained
12 at a time. For each seed, the epoch with the best validation score is kept.

1e-5 is the paper's learning rate for whole data sets. If only a part of a data set is available,
the learning rate is searched first, on the validation set and without a guide. All guides then use
the learning rate that was found:

    search RECIPE --methods none --name RECIPE_rates --optimizer.learning-rate 1e-5 3e-5 1e-4 3e-4

Figures 3 and 6 are sweeps over the guided layer and over the share of the training set. Both use
the loss weights that the search found:

    train multinli --methods ag mdg pdg --guiding.layer 1 2 3 4 5 6 --name multinli_layers ...
    train multinli --methods none ag mdg pdg --data.share 0.2 --name multinli_share_20 ...
"""

import dataclasses
from typing import Any

MDG_AND_PDG_WEIGHTS = (1e-1, 1e-2, 1e-3, 1e-4)
OTHER_WEIGHTS = (1.0, 1e-1, 1e-2, 1e-3)
SEARCH_SEEDS, SEARCH_AT_ONCE = 3, 12


def search_config(config: Any) -> Any:
    """Return the config of a recipe, changed so that it searches the loss weights of the guides.

    The search has 3 seeds and does not evaluate the test set.
    """
    return dataclasses.replace(
        config,
        name=config.name + "_search",
        seeds=SEARCH_SEEDS,
        models_at_once=SEARCH_AT_ONCE,
        guiding=dataclasses.replace(
            config.guiding, alpha=MDG_AND_PDG_WEIGHTS, beta=MDG_AND_PDG_WEIGHTS, gamma=OTHER_WEIGHTS
        ),
        output=dataclasses.replace(config.output, test=False),
    )
