"""Your own texts: a folder with train, validation and test (.csv, .tsv or .jsonl; text and label).

Command:  python -m experiments train text_files --data.manual-dir FOLDER
Device:   any; the sizes are those of the DA-Transformer paper, meant for a GPU or a TPU
Minutes:  as the texts are
Expected: as the texts are
"""

from distattn_jax.train import Config, DataConfig, OptimizerConfig


def get_config() -> Config:
    """The sizes of the DA-Transformer paper: 16 heads of 16, one layer, dropout 0.2, Adam 1e-3."""
    return Config(
        name="text_files",
        task="text_files",
        methods=("distance_aware", "vanilla", "no_positions"),
        epochs=6.0,
        data=DataConfig(longest=256, min_count=2),
        optimizer=OptimizerConfig(learning_rate=(1e-3,)),
    )
