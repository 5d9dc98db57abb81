"""Published numbers: the tables of Shaw et al. 2018, and text-only Transformers on Multi30k."""

from typing import NamedTuple

# Table 1: model -> method -> BLEU on newstest2014. The paper gives no numbers for relative and
# absolute positions together; section 4.2 says that they bring no further improvement.
TABLE_1 = {
    "base": {
        "vanilla": {"EN-DE": "26.5", "EN-FR": "38.2"},
        "relative_position": {"EN-DE": "26.8", "EN-FR": "38.7"},
    },
    "big": {
        "vanilla": {"EN-DE": "27.9", "EN-FR": "41.2"},
        "relative_position": {"EN-DE": "29.2", "EN-FR": "41.5"},
    },
}
LANGUAGES = ("EN-DE", "EN-FR")
# Table 2: clipping distance k -> BLEU, EN-DE, base model.
TABLE_2 = {0: "12.5", 1: "25.5", 2: "25.8", 4: "25.9", 16: "25.8", 64: "25.9", 256: "25.8"}
# Table 3: method -> BLEU, EN-DE, base model.
TABLE_3 = {
    "relative_position": "25.8",
    "relative_position_keys": "25.8",
    "relative_position_values": "25.3",
    "no_positions": "12.5",
}


class PublishedSystem(NamedTuple):
    """Text-only Transformer of others on Multi30k, English to German, test set of 2016.

    Attributes:
      name: Name and source.
      model: Layers of encoder and decoder, and width.
      bleu: BLEU of the texts with upper and lower case, or "-".
      bleu_lowercase: BLEU of lower-cased texts, or "-".
      note: Tokenisation, and differences to our evaluation.
    """

    name: str
    model: str
    bleu: str
    bleu_lowercase: str
    note: str


# In 991 of 1,000 sentences, the references of Wu et al. equal ours, if sacrebleu lower-cases ours
# and splits them into tokens (13a). The others differ in quotation marks, apostrophes, full stops.
MULTI30K = (
    PublishedSystem(
        "Wu et al. 2021 (arXiv 2105.14462), Transformer-Tiny",
        "4 + 4 x 128",
        "-",
        "41.02",
        "Lower-cased before training, Moses tokens, fairseq's BLEU; beam 5, mean of 10 checkpoints",
    ),
    PublishedSystem(
        "DGL (dmlc/dgl, examples/pytorch/transformer)",
        "6 + 6 x 512",
        "35.41",
        "-",
        "Moses tokens with hyphens split, multi-bleu.perl; beam 5",
    ),
    PublishedSystem(
        "DGL, two layers",
        "2 + 2 x 512",
        "36.45",
        "-",
        "Moses tokens with hyphens split, multi-bleu.perl; beam 5",
    ),
)
