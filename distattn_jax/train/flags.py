"""Command-line flags of options: spelling, and suggestions for unknown flags."""

import difflib
import re
from collections.abc import Collection

# Names that other programs give to our options, without the group. They are used in suggestions.
OTHER_NAMES = {
    "accumulate": ("gradient_accumulation_steps", "accumulation_steps"),
    "b1": ("beta1", "adam_beta1"),
    "b2": ("beta2", "adam_beta2"),
    "batch_tokens": ("max_tokens", "tokens_per_batch"),
    "batch_size": ("batch", "bs", "per_device_train_batch_size"),
    "clip_norm": ("clip", "grad_clip", "max_grad_norm"),
    "directory": ("out", "output", "out_dir", "output_dir"),
    "dropout_rate": ("dropout",),
    "dtype": ("compute_dtype", "mixed_precision"),
    "embedding_features": ("embedding_dim", "embedding_size"),
    "epochs": ("epoch", "n_epochs", "num_epochs", "num_train_epochs"),
    "epsilon": ("eps", "adam_epsilon"),
    "features": ("d_model", "hidden_size", "width"),
    "heads": ("n_heads", "num_heads", "num_attention_heads"),
    "layers": ("depth", "n_layers", "num_layers", "num_hidden_layers"),
    "learning_rate": ("lr",),
    "longest": ("max_len", "max_length", "max_seq_length", "seq_len"),
    "manual_dir": ("data_dir", "dataset_dir"),
    "methods": ("attention", "method", "variant"),
    "name": ("experiment", "run_name"),
    "pretrained": ("model_name", "model_name_or_path"),
    "seed": ("random_seed",),
    "seeds": ("n_seeds", "num_seeds"),
    "steps": ("max_steps", "max_update", "num_steps", "train_steps"),
    "vectors": ("embeddings", "glove"),
    "vocabulary": ("vocab", "vocab_size"),
    "warmup_steps": ("num_warmup_steps", "warmup"),
    "weight_decay": ("wd",),
}
OPTION_OF = {other: name for name, others in OTHER_NAMES.items() for other in others}


def make_flag(name: str) -> str:
    """Return the command-line flag of an option, e.g. `--data.batch-size` for `data.batch_size`."""
    return "--" + name.replace("_", "-")


def use_dashes(argument: str) -> str:
    """Replace underscores by dashes in the name of a flag, and leave its value unchanged."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return make_flag(name[2:]) + equals + value


def write_flags(message: str, names: Collection[str]) -> str:
    """Replace the names of options in an error message by command-line flags.

    A name without a dot is replaced only if it is the first word of the message.

    Args:
      message: Error message that names options by their dotted names.
      names: Dotted names of all options.
    """
    dotted = "|".join(re.escape(name) for name in names if "." in name)
    if dotted:
        message = re.sub(
            rf"(?<![\w.-])({dotted})(?![\w.])", lambda match: make_flag(match[0]), message
        )
    first = re.match(r"\w+", message)
    return make_flag(first[0]) + message[first.end() :] if first and first[0] in names else message


def suggest_option(name: str, known_names: Collection[str]) -> str:
    """Return the end of an error message about an unknown option, which suggests a known option.

    Only the parts after the last dot are compared. The suggestion is the first match in this list:

    - an option with the same last part
    - the option for which other programs use this name (see `OTHER_NAMES`)
    - an option with a similar spelling
    - `--help`

    Args:
      name: Unknown name, with or without its group.
      known_names: Dotted names of all options.
    """
    last = _last_part(name)
    near = difflib.get_close_matches(last, map(_last_part, known_names))
    for part in (last, OPTION_OF.get(last), *near):
        found = [option for option in sorted(known_names) if _last_part(option) == part]
        if found:
            (best,) = difflib.get_close_matches(name, found, n=1, cutoff=0)
            return f"did you mean {make_flag(best)}?"
    return "--help lists all options."


def _last_part(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]
