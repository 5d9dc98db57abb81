"""Recipe for Tables 1 to 4 of the attention-guiding paper: classify entailment of sentence pairs.

The data set is MultiNLI, with 3 classes.

Before:   python -m experiments search multinli --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train multinli --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/multinli_search
Device:   a GPU
Minutes:  about 1 to train MiniLM with one guide and six seeds, on one H200 shared with other runs
Expected: MiniLM, trained on 2.3 % of the training set for 4 epochs with learning rate 1e-4, has
          65.1 to 65.4 % without a guide and 64.6 to 65.7 % with a guide; the paper's BERT-base has
          83.24 % without a guide and 83.89 % with attention guiding (both guides of the paper)
"""

from distattn_jax.tasks import (
    GuidingConfig,
    PretrainedClassificationConfig,
    PretrainedClassificationData,
)
from distattn_jax.train import OptimizerConfig

PAIR = (
    "The old bridge was closed for a week because the river had risen.",
    "Nobody could cross the bridge for several days.",
)  # the pair of sentences whose attention is drawn


# Guides that need no further file. The other two need one each: --methods dependency --data.parses
# FOLDER, and --methods word_similarity --data.vectors GLOVE.
METHODS = (
    *("none", "ag", "mdg", "pdg"),
    *("first", "next", "previous", "period", "delimiter", "pmi"),
)
# The paper's learning rate, and weights of the guides for runs without a search.
OPTIMIZER = OptimizerConfig(learning_rate=(1e-5,))
GUIDING = GuidingConfig(alpha=(0.01,), beta=(0.01,), gamma=(0.1,))


def get_config() -> PretrainedClassificationConfig:
    """Return the config, with 3 seeds and the hyperparameters of the paper (section 3.3)."""
    return PretrainedClassificationConfig(
        name="multinli",
        methods=METHODS,
        seeds=3,
        epochs=5.0,
        data=PretrainedClassificationData(dataset="multinli", longest=256),
        guiding=GUIDING,
        optimizer=OPTIMIZER,
    )
