"""SNLI with two classes: decide if a premise entails a hypothesis."""

from typing import ClassVar

from distattn_jax.datasets.nli_builder import NliBuilder


class Snli(NliBuilder):
    """SNLI (Bowman et al. 2015) with two classes, from snli_1.0_train, _dev and _test.

    The files are .jsonl, .txt or .tsv with the columns gold_label, sentence1 and sentence2. All
    files are in `manual_dir` or in one of its subfolders.

    The DA-Transformer paper uses two classes and does not describe how it merged the three labels.
    Here, neutral and contradiction become not_entailment, and pairs without a consensus of the
    annotators are left out. This rule is our choice. An argument for the rule: it keeps all
    labelled pairs, 9,842 of dev and 9,824 of test, which match the 10k of the paper's Table 1. An
    argument against the rule: the paper's macro F-score equals its accuracy, which suggests classes
    of equal size, but with this rule not_entailment is twice as frequent as entailment.
    """

    PATTERNS = ("snli_1.0_{}.jsonl", "snli_1.0_{}.txt", "snli_1.0_{}.tsv")
    LABELS: ClassVar[dict[str, str]] = {
        "entailment": "entailment",
        "neutral": "not_entailment",
        "contradiction": "not_entailment",
    }
    # Digest: datasets/snli/checksums.tsv in tensorflow/datasets.
    URLS: ClassVar[dict[str, str]] = {
        "https://nlp.stanford.edu/projects/snli/snli_1.0.zip": (
            "sha256:afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e"
        )
    }
    HOMEPAGE = "https://nlp.stanford.edu/projects/snli"
    PUBLISHED_ROWS: ClassVar = {"train": 549_367, "validation": 9_842, "test": 9_824}
