"""Write an interactive page of the attention of a model, one HTML file."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from distattn_jax import plot
from distattn_jax.data import encode, load_pretrained_tokenizer
from distattn_jax.models import pretrained
from distattn_jax.tasks import (
    LanguageModelingConfig,
    LoadedModel,
    Translation,
    attend_to_texts,
    attend_with_encoder,
    load,
    load_config,
)
from distattn_jax.tasks.decoding import decode_lines, translate_tokens
from distattn_jax.tasks.text_task import PredictingTask
from experiments.commands.generate import generate
from experiments.commands.predict import predict
from experiments.commands.train import enable_compilation_cache
from experiments.commands.translate import count_steps, find_reason
from experiments.recipes import find_recipe

# Text for a pre-trained model. What the model relates to "it" is a question of the literature.
EXAMPLE = "The animal did not cross the street because it was too tired."
WRITTEN_TOKENS = 30  # length of the text that a language model writes if there is no --text


def main(arguments: Sequence[str]) -> None:
    """Run `explore RUN [--text TEXT ...] [--against RUN] [--output FILE] ...`: write a page."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    if parsed.against_member is not None and parsed.against is None:
        parser.error("--against-member needs --against")
    if parsed.layers is not None and min(parsed.layers) < 1:
        parser.error(f"--layers must be from 1 on: the first layer is 1; got {min(parsed.layers)}")
    Path(parsed.output).parent.mkdir(
        parents=True, exist_ok=True
    )  # Fail before the model is loaded.
    enable_compilation_cache()
    layers = None if parsed.layers is None else [layer - 1 for layer in parsed.layers]
    texts = parsed.text or find_example(parsed.run, parsed.member)
    page = None
    if parsed.against is not None:
        page = explore(parsed.against, texts, member=parsed.against_member, layers=layers)
    page = explore(parsed.run, texts, member=parsed.member, layers=layers, against=page)
    page.save(parsed.output)
    print(f"{parsed.output}: {len(page.html.encode()) / 1e6:.1f} MB; open it in a browser.")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments explore", description=__doc__)
    parser.add_argument(
        "run",
        help="folder of a run, e.g. runs/nearest/distance_aware, or folder of a pre-trained model",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        metavar="TEXT",
        help="text to attend to (now: the example of the recipe; a language model writes its own "
        "text); two texts for a model of pairs, or a sentence and its translation; several clicked "
        "titles for news recommendation",
    )
    parser.add_argument("--against", metavar="RUN", help="second model, shown beside the first")
    parser.add_argument(
        "--output", default="attention.html", metavar="FILE", help="file (now: attention.html)"
    )
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="I", help="layers; the first is 1 (now: all)"
    )
    parser.add_argument("--member", type=int, help="index of a model of RUN (now: the best)")
    parser.add_argument(
        "--against-member", type=int, metavar="MEMBER", help="the same for --against"
    )
    return parser


def explore(
    path: str,
    texts: Sequence[str],
    *,
    member: int | None = None,
    layers: Sequence[int] | None = None,
    against: plot.AttentionPage | None = None,
) -> plot.AttentionPage:
    """Return an interactive page of the attention of a model on texts.

    Args:
      path: Folder of a run, or folder of a pre-trained model.
      texts: Texts that the model reads, see `attend_to_texts`.
      member: Index of a model of the run. None means the best.
      layers: Indices of the layers to show. None shows all.
      against: Page of another model, which is shown beside this one.
    """
    if is_pretrained(path):
        if member is not None:
            raise ValueError(f"--member must be left out: {path} is a pre-trained model, no run.")
        encoder = pretrained.load(path)
        tokenizer = load_pretrained_tokenizer(path)
        longest = encoder.config.max_length
        found = attend_with_encoder(encoder, tokenizer, texts, longest=longest)
        caption = "pre-trained"
    else:
        loaded = load(path, member=member, portable=True)
        found = attend_to_texts(loaded, texts)
        caption = describe_output(loaded, texts, steps=count_steps(path))
    for name, part in found.items():
        if max(layers or [0]) >= len(part.maps):
            raise ValueError(
                f"--layers must be from 1 to {len(part.maps)}, the layers of the part {name!r}; "
                f"got {[layer + 1 for layer in layers or ()]}."
            )
    return plot.explore(
        {name: plot.AttentionPart(*part) for name, part in found.items()},
        layers=layers,
        title="/".join(Path(path).resolve().parts[-2:]),
        caption=caption,
        against=against,
    )


def is_pretrained(path: str) -> bool:
    """Return True for a folder of a pre-trained model in the layout of Hugging Face."""
    file = epath.Path(path) / "config.json"
    try:
        content = json.loads(file.read_text()) if file.is_file() else None
    except ValueError:
        return False  # The reader of runs reports a damaged file.
    return isinstance(content, dict) and "hidden_size" in content  # Old ones lack "model_type".


def describe_output(loaded: LoadedModel, texts: Sequence[str], *, steps: int) -> str:
    """Return a text with the prediction or the translation of a model.

    Return "" if the model neither predicts nor translates.

    Args:
      loaded: Trained model.
      texts: Texts that the model reads.
      steps: Number of training steps of the model, for the reason of an empty translation.
    """
    lines = [" ".join(text.split()) for text in texts]
    if isinstance(loaded.task, PredictingTask):
        (prediction,) = predict(loaded, ["\t".join(lines)], size=1)
        return f"predicts {prediction.summary.replace(chr(9), ', ')}" if prediction else ""
    if isinstance(loaded.task, Translation) and len(lines) == 1:
        sources = encode(loaded.tokenizer, lines)
        (tokens,) = translate_tokens(loaded.model, sources)
        (translation,) = decode_lines(loaded.tokenizer, [tokens])
        if not translation:
            return f"translates into an empty text: {find_reason([tokens], steps)}"
        return f"translates: {translation}"
    return ""


def find_example(path: str, member: int | None = None) -> list[str]:
    """Return a list with one example text, for a run or for a pre-trained model.

    The example text of a run is that of its recipe. A language model writes its example text
    itself, because only its own texts are sure to be in the language that it knows.

    Args:
      path: Folder of a run, or folder of a pre-trained model.
      member: Index of a model of the run. None means the best.
    """
    if is_pretrained(path):
        return [EXAMPLE]
    config = load_config(path)
    if isinstance(config, LanguageModelingConfig):
        loaded = load(path, member=member, portable=True)
        (text,) = generate(loaded, [""], tokens=WRITTEN_TOKENS, temperature=0.8, top_p=0.95)
        print("The model wrote the text of the page itself; --text TEXT chooses another one.")
        return [text.strip() or EXAMPLE]
    example = getattr(find_recipe(config), "SENTENCE", None)
    if example is None:
        raise ValueError(
            f"--text must be given, because the recipe of {path} has no example text. "
            'Add a text like those of training, as in --text "A dog runs."'
        )
    return [example]
