"""Experiments of the report: recipe, options, hyperparameter grid and methods of each.

The options of an experiment were fixed before its first run. They include the grid: a run trains
all settings of the grid with 5 seeds side by side, and the setting with the best mean validation
score is reported. All methods try the same number of settings.

The models are small, so that all runs together take minutes on one GPU.
"""

from typing import NamedTuple

from experiments.recipes.ag import METHODS as ENCODERS
from experiments.recipes.imdb_language_model import METHODS as LANGUAGE_MODELS

__all__ = [
    "CUTS",
    "ENCODERS",
    "EXPERIMENTS",
    "LENGTHS",
    "LONGER_TRAINED_LENGTH",
    "OURS",
    "REMEDY",
    "TRAINED_LENGTH",
    "TREEBANKS",
]

OURS = "distance_aware"
REMEDY = "distance_aware_score_bias"  # was meant to reduce the attention to far keys
TRAINED_LENGTH = 256  # tokens of an example, for language models
LONGER_TRAINED_LENGTH = 512  # the same, for a second experiment on language models
BATCH_TOKENS = 4096  # tokens of a batch, for language models
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # tokens of an example of the test set
CUTS = (64, 128, 256, 512)  # words to which reviews are cut
# Universal Dependencies treebanks of languages other than English, by name of the experiment.
TREEBANKS = {
    "ud_fr": "French-Sequoia",
    "ud_el": "Greek-GDT",
    "ud_tr": "Turkish-IMST",
    "ud_vi": "Vietnamese-VTB",
}
# Methods of the language models that are trained on LONGER_TRAINED_LENGTH tokens.
LONGER_LANGUAGE_MODELS = (*ENCODERS, "alibi", "kerple_log", "t5_bias")


class Experiment(NamedTuple):
    """Experiment of the report.

    Attributes:
      title: Name of the data in tables.
      recipe: Name of the recipe.
      options: Options that differ from the recipe, as on the command line.
      methods: Attention variants, one run each.
      files: Options that name the raw files, with placeholders.
    """

    title: str
    recipe: str
    options: tuple[str, ...]
    methods: tuple[str, ...] = ENCODERS
    files: str = "--data.manual-dir FOLDER"

    def command(self, name: str) -> str:
        """Return the command that trains all methods.

        Args:
          name: Name of the experiment.
        """
        options = " ".join(self.options)
        return (
            f"python -m experiments train {self.recipe} --name {name} {self.files} "
            f"{options} --methods {' '.join(self.methods)}"
        )


# 4 settings with 5 seeds each.
TAGGING = (
    *("--seeds", "5", "--model.dropout-rate", "0.1", "0.3"),
    *("--optimizer.learning-rate", "1e-3", "2e-3", "--data.buckets", "3"),
)
# Data sets of 1,400 to 3,500 sentences.
SMALL_TAGGING = (*TAGGING, "--epochs", "20", "--data.batch-size", "32")
# 2 settings with 5 seeds each.
REVIEWS = (
    *("--seeds", "5", "--model.dropout-rate", "0.2", "0.4", "--epochs", "4"),
    *("--model.layers", "2", "--model.heads", "8", "--model.head-features", "16"),
    *("--model.features", "128", "--model.hidden-features", "256"),
    *("--model.embedding-features", "100", "--data.vocabulary", "20000", "--data.buckets", "2"),
)
# 2 settings with 5 seeds each.
STREAMS = (
    *("--seeds", "5", "--optimizer.learning-rate", "1e-3", "2e-3", "--model.dropout-rate", "0"),
    *("--steps", "2000", "--optimizer.warmup-steps", "200", "--optimizer.clip-norm", "1"),
    *("--model.layers", "4", "--model.heads", "4", "--model.head-features", "32"),
    *("--model.features", "128", "--model.hidden-features", "512"),
    *("--data.vocabulary", "4096", "--data.buckets", "1", "--output.evaluate-every", "1000"),
    *("--data.validation-tokens", "131072", "--data.test-tokens", "262144"),
)


def stream_options(length: int) -> tuple[str, ...]:
    """Return the options of language models that are trained on examples of `length` tokens.

    Args:
      length: Number of tokens of an example. A batch has the same number of tokens for each length.
    """
    batch_size = BATCH_TOKENS // length
    return (*STREAMS, "--data.longest", str(length), "--data.batch-size", str(batch_size))


EXPERIMENTS = {
    "ud_en": Experiment(
        "parts of speech, UD English-EWT",
        "tagging",
        (*TAGGING, "--epochs", "10", "--data.batch-size", "64"),
    ),
    # Greek and accented letters take two or three bytes.
    **{
        name: Experiment(
            f"parts of speech, UD {treebank}",
            "tagging",
            (*SMALL_TAGGING, "--data.spelling-bytes", "48"),
        )
        for name, treebank in TREEBANKS.items()
    },
    "wnut17": Experiment(
        "named entities, WNUT-17",
        "tagging",
        SMALL_TAGGING,
        files="--data.manual-dir FOLDER --data.vectors GLOVE",
    ),
    "imdb_language_model": Experiment(
        "language model of IMDB",
        "imdb_language_model",
        stream_options(TRAINED_LENGTH),
        LANGUAGE_MODELS,
    ),
    "imdb_language_model_512": Experiment(
        "language model of IMDB, trained on 512 tokens",
        "imdb_language_model",
        stream_options(LONGER_TRAINED_LENGTH),
        LONGER_LANGUAGE_MODELS,
    ),
    **{
        f"imdb_{cut}": Experiment(
            f"sentiment of IMDB, {cut} words", "imdb", (*REVIEWS, "--data.longest", str(cut))
        )
        for cut in CUTS
    },
}
