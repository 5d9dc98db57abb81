"""Experiments of the report: titles, methods and lengths.

The commands of all runs are in details.md. Their options were fixed before the first run. They
include the grid: a run trains all settings of the grid with 5 seeds side by side, and the setting
with the best mean validation score is reported. All methods try the same number of settings. The
models are small, so that all runs together take minutes on one GPU.
"""

from typing import NamedTuple

from experiments.recipes.ag import METHODS as ENCODERS
from experiments.recipes.imdb_language_model import METHODS as LANGUAGE_MODELS

OURS = "distance_aware"
REMEDY = "distance_aware_score_bias"  # was meant to reduce the attention to far keys
TRAINED_LENGTHS = (256, 512)  # tokens of an example, for two experiments on language models
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # tokens of an example of the test set
CUTS = (64, 128, 256, 512)  # words to which reviews are cut
# Universal Dependencies treebanks of languages other than English, by name of the experiment.
TREEBANKS = {
    "ud_fr": "French-Sequoia",
    "ud_el": "Greek-GDT",
    "ud_tr": "Turkish-IMST",
    "ud_vi": "Vietnamese-VTB",
}


class Experiment(NamedTuple):
    """Experiment of the report: name of the data in tables, and attention variants."""

    title: str
    methods: tuple[str, ...] = ENCODERS


EXPERIMENTS = {
    "ud_en": Experiment("parts of speech, UD English-EWT"),
    **{name: Experiment(f"parts of speech, UD {bank}") for name, bank in TREEBANKS.items()},
    "wnut17": Experiment("named entities, WNUT-17"),
    "imdb_language_model": Experiment("language model of IMDB", LANGUAGE_MODELS),
    "imdb_language_model_512": Experiment(
        "language model of IMDB, trained on 512 tokens",
        (*ENCODERS, "alibi", "kerple_log", "t5_bias"),
    ),
    **{f"imdb_{cut}": Experiment(f"sentiment of IMDB, {cut} words") for cut in CUTS},
}
