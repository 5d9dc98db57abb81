"""Experiments of the report: methods and lengths.

The commands of all runs are in details.md. The options of these commands were fixed before the
first run, including the hyperparameter grid. A run trains all settings of the grid with 5 seeds
side by side, and the setting with the best mean validation score is reported. All methods try the
same number of settings. The models are small, so that all runs together take minutes on one GPU.
"""

from experiments.recipes.ag import METHODS as PAPER_METHODS
from experiments.recipes.imdb_language_model import METHODS as LANGUAGE_MODELS

OURS = "distance_aware"
# Two-sided attention, and its forms in each of which one part is removed or replaced. They are
# compared on two experiments. The two forms with the best mean rank on the validation sets of these
# experiments are run on all others, beside rotary positions. A first trial on the same validation
# sets had a logarithm in place of the power, and the learning rate of other parameters. The power
# and five times the learning rate were better on both. Rivals have the learning rate of other
# parameters, so that `two_sided_same_rate` is the form to compare with them if this matters.
TWO_SIDED = "two_sided"
ABLATION = (
    TWO_SIDED,
    *(
        f"{TWO_SIDED}_{part}"
        for part in ("tied", "no_constant", "no_decay", "no_relu", "no_factor", "same_rate")
    ),
    f"{TWO_SIDED}_buckets",
    *(f"{TWO_SIDED}_{decay}_decay" for decay in ("linear", "log")),
)
ABLATED = ("ud_el", "imdb_language_model")
BEST_FORMS = ("two_sided_buckets", TWO_SIDED)
OTHER_FORMS = tuple(form for form in ABLATION if form not in BEST_FORMS)
ENCODERS = (*PAPER_METHODS, "rotary", *BEST_FORMS)
REMEDY = "distance_aware_score_bias"  # was meant to reduce the attention to far keys
TRAINED_LENGTHS = (256, 512)  # tokens of an example, for two experiments on language models
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # tokens of an example of the test set
CUTS = (64, 128, 256, 512)  # words to which reviews are cut
# Universal Dependencies treebanks of languages other than English.
TREEBANKS = ("ud_fr", "ud_el", "ud_tr", "ud_vi")
SPEECH = ("ud_en", *TREEBANKS)
TAGGING = (*SPEECH, "wnut17")
REVIEWS = tuple(f"imdb_{cut}" for cut in CUTS)
# AG's News and SST again, with fewer seeds than the report on DA-Transformer has.
SHORT_TEXTS = ("ag_5_seeds", "sst_5_seeds")
# Experiments in the figure of the functions that heads of two-sided attention learn.
LEARNED = ("ud_el", "wnut17", "imdb_language_model", "imdb_128")
# A language model of about 30 million parameters, trained on the C files of the Linux kernel.
LARGER = "linux_language_model"
LARGER_LENGTHS = (1024, 2048, 4096, 8192, 16_384)  # tokens of an example of the test set
# Language models of the same files, in long texts: local heads, heads that forget, plain attention,
# and, in another experiment, plain attention in a window.
LONG_TEXTS = "linux_long"
LONG_TEXTS_LENGTH = 32_768  # tokens of an example, in training and in the test set
# Attention variants of each experiment.
EXPERIMENTS = {
    **dict.fromkeys(TAGGING, ENCODERS),
    "ud_el": tuple(dict.fromkeys((*ENCODERS, *ABLATION))),
    "imdb_language_model": (*LANGUAGE_MODELS, "rotary", *ABLATION),
    "imdb_language_model_512": (*ENCODERS, "alibi", "kerple_log", "t5_bias"),
    **dict.fromkeys(REVIEWS, ENCODERS),
    **dict.fromkeys(SHORT_TEXTS, ("vanilla", OURS, "rotary", *BEST_FORMS)),
    LARGER: ("rotary", "alibi", "transformer_xl", BEST_FORMS[0]),
    LONG_TEXTS: (OURS, f"{TWO_SIDED}_linear_decay", "rotary"),
    f"{LONG_TEXTS}_window": ("rotary",),
}
# Experiment of the report on translation, and the methods that are added to it.
TRANSLATION = "multi30k_small"
ADDED = {TRANSLATION: ("rotary", *BEST_FORMS)}
