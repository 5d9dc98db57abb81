"""Published numbers of the attention-guiding paper (Wang et al. 2022): Tables 1 to 4, and text.

A row of Tables 1 to 3 is a string of percentages: four for MultiNLI, four for MedNLI, five for
Cross-genre-IR. `*` means p < 0.05 and `**` p < 0.01 in the paper's t-test; `-` is an empty cell.
Two numbers are misprints. They are kept as printed, and every table marks them with "(sic)".
"""

from collections.abc import Mapping

CLASSIFICATION = ("accuracy", "macro_precision", "macro_recall", "macro_f")
RANKING = ("mrr", "recall@1", "recall@3", "recall@5", "recall@20")
# Metrics of the paper's data sets, in the order of the columns.
METRICS = {"multinli": CLASSIFICATION, "mednli": CLASSIFICATION, "cross_genre": RANKING}

MISPRINTS = {"83.01*": "83.01* (sic)", "8.3.57": "8.3.57 (sic)"}
ERRATA = (
    "Table 1, SciBERT+AG, F1 on MedNLI: 83.01 is printed. Precision is 80.03 and recall 80.11, so "
    "F1 is about 80.03. The paper's text reports a largest gain of 3.58 points of F1, which is "
    "this misprint minus 79.43.",
    "Table 2, [Prev], recall on MultiNLI: 8.3.57 is printed instead of 83.57.",
    "Equation 2: the minus sign occurs twice. We use binary cross-entropy.",
    "Equation 8: a sum over the index that it calls the column would make every entry 1. We follow "
    "the sentence before it, which speaks of the attention that all tokens received.",
)

# Section 3.1: rows of train, validation and test, classes, tokens per example.
DATA_SIZES = {
    "multinli": ("433k in all", "-", "-", "3", "-"),
    "mednli": ("11k", "-", "-", "3", "-"),
    "cross_genre": ("48k pairs", "-", "-", "2", "-"),
}
# Models of Table 3.
ABLATION_MODELS = {"multinli": "Roberta", "mednli": "BlueBERT", "cross_genre": "BioBERT"}

TABLE_1 = {
    "SOTA": """87.90 - - -              84.00 - - -              69.50 62.50 74.30 78.30 82.80""",
    "BERT": """
        83.24 83.19 83.17 83.17  76.02 76.25 76.01 76.11  73.18 62.84 80.38 85.07 94.58""",
    "BERT+AG": """
        83.89 83.91 83.82 83.83  77.22* 77.35* 77.24* 77.26*  73.38 63.69 80.74 84.59 94.09""",
    "ALBERT": """
        83.09 83.05 83.04 83.02  77.76 78.04 77.78 77.84  71.00 62.06 76.07 80.02 93.21""",
    "ALBERT+AG": """
        84.41** 84.44** 84.37** 84.37**  78.76** 78.72** 78.80** 78.74**
        71.86* 62.06 78.08* 82.95* 93.42*""",
    "Roberta": """
        85.95 85.91 85.94 85.91  80.17 80.12 80.12 80.14  78.67 71.04 83.58 86.85 94.86""",
    "Roberta+AG": """
        86.77* 86.67* 86.72* 86.67*  80.31 80.36 80.31 80.32
        79.88* 72.05* 84.47* 87.70* 95.68*""",
    "BioBERT": """
        81.37 81.35 81.33 81.28  81.86 81.81 81.84 81.83  83.72 76.48 88.83 92.52 97.21""",
    "BioBERT+AG": """
        81.54** 81.46** 81.47** 81.45**  82.63 82.68 82.65 82.64
        83.76 75.87 90.17 92.88 96.84""",
    "ClinicalBERT": """
        79.68 79.81 79.69 79.66  80.73 80.67 80.71 80.66  71.83 61.99 78.30 83.58 92.03""",
    "ClinicalBERT+AG": """
        80.07** 80.13** 80.07** 80.09**  82.63* 82.68* 82.67* 82.64*
        72.02* 62.24* 78.18 83.70* 91.91""",
    "BlueBERT": """
        79.13 79.10 79.10 79.06  83.90 83.94 83.91 83.92  69.68 59.65 75.67 82.08 91.75""",
    "BlueBERT+AG": """
        79.21* 79.17* 79.17* 79.13*  84.32** 84.46** 84.33** 84.34**
        71.02* 61.47* 77.61* 81.53 91.38""",
    "SciBERT": """
        83.61 83.68 83.56 83.58  79.47 79.42 79.47 79.43  80.72 72.80 86.65 90.57 96.48""",
    "SciBERT+AG": """
        83.74* 83.79* 83.70* 83.71*  80.03* 80.03* 80.11* 83.01*
        81.67* 72.84* 88.07* 91.50* 97.41*""",
}

# BERT with every guide.
TABLE_2 = {
    "none": """
        83.24 83.19 83.17 83.17  76.02 76.25 76.01 76.11  73.18 62.84 80.38 85.07 94.58""",
    "ag": """
        83.89* 83.91* 83.82* 83.83*  77.22* 77.35 77.24* 77.26*
        73.38 63.69 80.74 84.59 94.09""",
    "first": """
        83.65 83.63 83.58 83.59  76.02 76.38 76.01 76.13  72.81 62.24 80.24 85.44 94.70""",
    "next": """
        83.71 83.74 83.64 83.66  76.93 77.23 76.93 77.04  72.84 63.79 77.69 84.47 93.61""",
    "previous": """
        83.65 83.67 8.3.57 83.59  77.07 77.52 77.06 77.15  70.98 60.60 77.53 83.39 93.37""",
    "period": """
        83.70 83.71 83.64 83.65  76.02 76.38 76.01 76.13  73.85 64.40 79.87 85.56 93.73""",
    "delimiter": """
        83.65 83.67 83.59 83.60  75.67 75.71 75.66 75.69  70.97 61.69 76.31 82.16 90.86""",
    "pmi": """
        83.68 83.69 83.61 83.62  77.07 77.60 77.05 77.16  72.41 62.61 79.11 84.29 93.12""",
    "dependency": """
        83.59 83.61 83.53 83.55  76.37 76.61 76.37 76.46  73.10 64.37 78.38 82.76 92.57""",
    "word_similarity": """
        83.73 83.74 83.67 83.68  76.72 77.03 76.72 76.81  74.15 64.48 80.91 85.80 94.22""",
}

# The models of ABLATION_MODELS with every guide.
TABLE_3 = {
    "ag": """
        86.77* 86.67* 86.72* 86.67*  84.32* 84.46* 84.33* 84.34*
        83.76 75.87 90.17 92.88 96.84""",
    "none": """
        85.95 85.91 85.94 85.91  83.90 83.94 83.91 83.92  83.72 76.48 88.83 92.52 97.21""",
    "pdg": """
        86.52 86.44 86.49 86.43  84.18 84.21 84.18 84.15  83.48 75.99 88.63 92.52 96.84""",
    "mdg": """
        86.57 86.48 86.52 86.48  82.98 83.15 82.98 83.02  83.28 75.63 88.83 92.76 96.72""",
}

# Seconds per epoch (without AG, with AG) on MultiNLI, MedNLI and Cross-genre-IR.
TABLE_4 = {
    "BERT": ((2190, 2334), (95, 112), (339, 361)),
    "ALBERT": ((2639, 2770), (96, 101), (401, 423)),
    "Roberta": ((2190, 2344), (82, 87), (340, 354)),
    "BioBERT": ((2225, 2318), (82, 87), (341, 361)),
    "ClinicalBERT": ((2228, 2372), (82, 85), (339, 355)),
    "BlueBERT": ((2210, 2324), (100, 102), (340, 359)),
    "SciBERT": ((2215, 2345), (81, 86), (338, 360)),
}

# Numbers from the paper's text about Figures 3 and 6: accuracy of BERT on MedNLI.
FIGURE_3 = (
    "The paper's text, BERT on MedNLI, accuracy (%): 76.02 without a guide; MDG 77.36 at layer 7 "
    "and 0.63 points below no guide at layer 5; PDG 77.43 at layer 9 and 75.81 at layer 11; at "
    "layer 6 MDG gains 0.21, PDG 1.51 and both together 1.76 points."
)
FIGURE_6 = (
    "The paper's text, BERT on MedNLI, accuracy (%): with 20 % of the training set 68.78 without a "
    "guide, 69.62 with MDG and 69.48 with PDG; with the whole training set 76.02 without a guide, "
    "and 77.22 with both."
)


def parse_row(row: str) -> dict[str, dict[str, str]]:
    """Return numbers[data set][metric] of one row of Tables 1 to 3, as printed in the paper.

    Misprints are marked with "(sic)".
    """
    numbers = [MISPRINTS.get(number, number) for number in row.split()]
    columns = [(data, metric) for data, metrics in METRICS.items() for metric in metrics]
    parsed: dict[str, dict[str, str]] = {data: {} for data in METRICS}
    for (data, metric), number in zip(columns, numbers, strict=True):
        parsed[data][metric] = number
    return parsed


def select_data_set(table: Mapping[str, str], data: str) -> dict[str, dict[str, str]]:
    """Return numbers[row][metric] of one data set in one of Tables 1 to 3, as printed.

    If the paper does not use the data set, numbers[row] is {} for every row.

    Args:
      table: Printed numbers of all data sets by row, such as `TABLE_1`.
      data: Name of the data set.
    """
    return {name: parse_row(row).get(data, {}) for name, row in table.items()}
