"""Recipe for your own texts: train a text classifier on the files of a folder.

The folder contains the files train, validation and test (.csv, .tsv or .jsonl). Each example has a
text and a label.

Command:  python -m experiments train text_files --data.manual-dir FOLDER
Device:   any; the model has the sizes of the DA-Transformer paper, meant for a GPU or a TPU
Minutes:  depends on the texts
Expected: depends on the texts
"""

from distattn_jax.tasks import TextClassificationConfig, TextClassificationData


def get_config() -> TextClassificationConfig:
    """Return the config, with the sizes of the DA-Transformer paper.

    The model has one layer with 16 heads of width 16.
    """
    return TextClassificationConfig(
        name="text_files",
        methods=("distance_aware", "vanilla", "no_positions"),
        epochs=6.0,
        min_steps=200,
        data=TextClassificationData(dataset="text_files", longest=256, min_count=2),
    )
