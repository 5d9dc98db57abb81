"""Recipe for your own CoNLL files: tag the words of sentences, e.g. named entities.

The folder contains the files train, validation (or dev) and test. Column files (.txt or .conll)
have the word in the first column and the tag in the last column. The tag of a word in a CoNLL-U
file (.conllu) is its part of speech.

Command:  python -m experiments train tagging --data.manual-dir FOLDER --data.vectors GLOVE
Then:     python -m experiments predict runs/tagging/adapted SENTENCES
Device:   any, because the model is small; --model.layers and --model.features enlarge it
Minutes:  less than 1 for each method on WNUT-17, 1 to 2 on UD English-EWT, with 20 models side by
          side on a shared H200
Expected: F1 of the test set of WNUT-17 (options of the report `when_to_use`): relative positions
          21.3, Transformer-XL 20.2, TENER 19.0, distance-aware 16.3, sinusoids 15.7, no positions
          15.4; accuracy of the test set of UD English-EWT: Transformer-XL 94.8, relative positions
          94.7, TENER 94.7, sinusoids 93.9, distance-aware 93.4, no positions 91.1; the report has
          four other languages
"""

from distattn_jax.tasks import TaggingConfig, TaggingData, TaggingModelConfig
from distattn_jax.train import OptimizerConfig
from experiments.recipes.ag import METHODS

SENTENCE = "Anna Smith flew from Berlin to New York on Monday ."


def get_config() -> TaggingConfig:
    """Return the config: 2 layers with 8 heads of width 16, and all methods of the recipe ag."""
    return TaggingConfig(
        name="tagging",
        methods=METHODS,
        epochs=20.0,
        min_steps=200,
        data=TaggingData(dataset="conll", batch_size=32, min_count=2),
        model=TaggingModelConfig(
            layers=2,
            heads=8,
            head_features=16,
            features=128,
            hidden_features=256,
            embedding_features=100,
            dropout_rate=(0.3,),
        ),
        optimizer=OptimizerConfig(
            learning_rate=(1e-3,), schedule="linear", warmup_steps=200, warmup_share=0.1
        ),
    )
