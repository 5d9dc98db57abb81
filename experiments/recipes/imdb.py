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
Minutes:  for each method, 1 to 2 with 64 words and 2 to 4 with 512, with the options of the report
          `when_to_use` and 10 models side by side, on an H200 shared by 6 to 8 runs
Expected: accuracy of the test set, with the same options, at 64 and 512 words: sinusoids 77.18 and
          87.79, TENER 76.55 and 87.95, distance-aware 76.42 and 87.63, no positions 76.42 and 87.39
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
