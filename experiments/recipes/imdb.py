"""Recipe for long texts: predict the sentiment of whole film reviews.

The data set is IMDB, with 2 classes and 231 words in a review on average. Longer reviews are cut
off. --data.longest 64, 128, 256 and 512 show whether the order of the methods changes with the
length.

Before:   python -m experiments search imdb
Command:  python -m experiments train imdb --search runs/imdb_search
Lengths:  python -m experiments search imdb --name imdb_64_search --data.longest 64
          python -m experiments train imdb --name imdb_64 --data.longest 64
          --search runs/imdb_64_search
Device:   a GPU
Minutes:  for each method, less than 1 with 64 words and 6 with 512, with the options of the report
          `when_to_use` and 10 models side by side on a shared H200
Expected: accuracy of the test set, with the same options: 64 words: sinusoids 77.2, no positions
          76.4, distance-aware 76.4; 512 words: sinusoids 87.8, no positions 87.4; others: not run
"""

from distattn_jax.tasks import TextClassificationConfig, TextClassificationData
from experiments.recipes.ag import METHODS

SENTENCE = "The plot is thin, but the actors are so good that nobody will mind."


def get_config() -> TextClassificationConfig:
    """Return the config, with 5 seeds and reviews of at most 256 words."""
    return TextClassificationConfig(
        name="imdb",
        methods=METHODS,
        seeds=5,
        epochs=5.0,
        data=TextClassificationData(dataset="imdb", longest=256, buckets=3, min_count=2),
    )
