"""Search hyperparameters that a paper does not publish, on the validation set."""

from collections.abc import Sequence

from distattn_jax.tasks import LanguageModelingConfig, TranslationConfig
from distattn_jax.tasks.configs import FineTuningConfig
from distattn_jax.train import Config, Run, RunError
from distattn_jax.train.options import list_set_options, parse_options
from distattn_jax.train.run import experiment_folder
from experiments.commands.train import run
from experiments.papers.attention_guiding import settings as attention_guiding
from experiments.papers.da_transformer import settings as da_transformer
from experiments.papers.shaw import search as shaw
from experiments.recipes import load_recipe


def main(arguments: Sequence[str]) -> None:
    """Run `search RECIPE [--option value ...]`: train a grid of hyperparameters.

    `train RECIPE --search FOLDER` then uses the best hyperparameters of each method.
    """
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m experiments search RECIPE [--option value ...]")
        raise SystemExit(0 if set(arguments) & {"-h", "--help"} else 2)
    recipe, *flags = arguments
    config = load_recipe(recipe).get_config()
    searched: Config
    if isinstance(config, TranslationConfig):
        searched = shaw.search_config(config)
    elif isinstance(config, FineTuningConfig):
        searched = attention_guiding.search_config(config)
    elif isinstance(config, LanguageModelingConfig):
        raise RunError(
            f"RECIPE must have a grid of hyperparameters; got {recipe}, and language models have "
            "none. Train a grid instead: give an option several values, for example "
            f"`train {recipe} --optimizer.learning-rate 1e-3 2e-3`."
        )
    else:
        searched = da_transformer.search_config(config)
    config = parse_options(searched, flags, program=f"python -m experiments search {recipe}")
    run(config, set_options=list_set_options(flags))
    if isinstance(config, TranslationConfig):
        result = Run(experiment_folder(config) / config.methods[0]).result
        assert result is not None
        for name, value in shaw.choose_setting(result).items():
            print(f"Lowest mean validation loss over all kinds of positions: {name} {value}.")
