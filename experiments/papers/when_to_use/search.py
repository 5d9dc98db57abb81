"""Search the learning rate and the dropout rate of language models.

All methods try the same 6 settings with one seed. The setting with the lowest validation loss is
chosen for each method. Texts of the validation set are as long as those of the training set, so
that the choice ignores how a method behaves on longer texts.
"""

import dataclasses

from distattn_jax.tasks import LanguageModelingConfig

LEARNING_RATES = (5e-4, 1e-3, 2e-3)
DROPOUT_RATES = (0.0, 0.1)


def search_config(config: LanguageModelingConfig) -> LanguageModelingConfig:
    """Return the config of a recipe, changed so that it searches a hyperparameter grid.

    The search does not evaluate the test set.
    """
    return dataclasses.replace(
        config,
        name=config.name + "_search",
        seeds=1,
        model=dataclasses.replace(config.model, dropout_rate=DROPOUT_RATES),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=LEARNING_RATES),
        output=dataclasses.replace(config.output, test=False),
    )
