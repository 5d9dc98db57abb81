"""Read and write checkpoints in the Hugging Face format: config.json and safetensors files."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
from flax import nnx

from distattn_jax.models.pretrained import tensor_names
from distattn_jax.models.pretrained.config import (
    FAMILIES,
    PretrainedConfig,
    format_config,
    parse_config,
)
from distattn_jax.models.pretrained.encoder import PretrainedEncoder
from distattn_jax.models.pretrained.tensor_names import ParameterPath

Folder = str | Path | epath.Path
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"  # lists the files of a checkpoint with several
MAX_PROBLEMS = 10  # in an error message
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)


def resolve_folder(source: Folder, *, revision: str | None = None) -> Path:
    """Return the local folder of a checkpoint. Download it if it is on the Hugging Face hub.

    Args:
      source: Folder, or name on the Hugging Face hub, e.g. "google-bert/bert-base-uncased".
      revision: Branch, tag or commit on the hub. None means the newest commit.
    """
    if Path(source).is_dir():
        return Path(source)
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(source)):
        raise ValueError(
            f"source (--model.pretrained) must be a folder or a name on the hub; got {source}."
        )
    try:
        import huggingface_hub  # imported here because it is an optional dependency
    except ImportError as error:
        raise ValueError(
            f"There is no folder {source}. To download a model of this name from the hub, "
            'pip install "distattn-jax[hub]".'
        ) from error
    patterns = ["config.json", "*.safetensors", INDEX_FILE, *TOKENIZER_FILES]
    try:
        folder = huggingface_hub.snapshot_download(
            str(source), revision=revision, allow_patterns=patterns
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"There is no folder {source}, and the download from the hub failed: {error}"
        ) from error
    if not list(Path(folder).glob("*.safetensors")):
        raise ValueError(
            f"{source} has no safetensors on the hub; {_conversion_advice(str(source), 'FOLDER')}"
        )
    return Path(folder)


def read_config(folder: Folder) -> PretrainedConfig:
    """Read the configuration of a checkpoint from config.json.

    The file does not say if there is a pooler, and an old file does not contain the family ("bert",
    "roberta" or "albert"). These two are found from the names of the stored tensors.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} must contain config.json.")
    content = _read_json_object(path)
    with _open_weights(folder) as stored:
        names = [name for name, _ in stored]
    prefixes = [family for family in FAMILIES if any(n.startswith(f"{family}.") for n in names)]
    family = prefixes[0] if len(prefixes) == 1 else None
    has_pooler = any(re.match(r"(\w+\.)?pooler\.", name) for name in names)
    return parse_config(content, path, family=family, pooler=has_pooler)


def weight_files(folder: Folder) -> list[Path]:
    """Return the paths of the safetensors files of a checkpoint, which may be one or several."""
    folder = Path(folder)
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        parts = _read_json_object(folder / INDEX_FILE).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
            raise ValueError(
                f"{folder / INDEX_FILE} must contain weight_map, an object that maps tensor names "
                "to file names."
            )
        for name in parts.values():
            if Path(name).name != name or not name.isprintable():
                raise ValueError(f"{folder / INDEX_FILE}: {name!r} must be a file in this folder.")
        return [folder / name for name in sorted(set(parts.values()))]
    if pickles := sorted(folder.glob("*.bin")):
        raise ValueError(f"{pickles[0]}: {_conversion_advice(str(folder), str(folder))}")
    raise ValueError(f"{folder} must contain {WEIGHTS_FILE} or {INDEX_FILE}.")


def stored_dtypes(folder: Folder) -> list[str]:
    """Return the names of all dtypes that occur in a checkpoint, such as ["BF16", "F32"]."""
    with _open_weights(folder) as stored:
        return sorted({file.get_slice(name).get_dtype() for name, file in stored})


def read_parameters(folder: Folder, config: PretrainedConfig) -> dict[ParameterPath, np.ndarray]:
    """Read the parameters of an encoder from a checkpoint, in float32.

    Tensors of task-specific output layers are ignored. The pooler is ignored if `config.pooler` is
    False.

    Args:
      folder: Folder of the checkpoint.
      config: Configuration of the encoder.

    Returns:
      Dict from the path of a parameter in `PretrainedEncoder(config)` to its value. A path is a
      tuple of attribute names and list indices, such as ("layers", 0, "attention_norm", "scale").
    """
    tensors = tensor_names.tensors_by_path(config)
    expected = {tensor.name: tensor for tensor in tensors.values()}
    with _open_weights(folder) as stored:
        locations: dict[str, tuple[Any, str]] = {}  # file, and name in the file
        problems = []
        for stored_name, file in stored:
            name = tensor_names.normalize_name(stored_name, config.family)
            if name in locations:
                problems.append(f"{name} is stored twice")
            elif name in expected:
                locations[name] = (file, stored_name)
            elif not tensor_names.is_ignored(name, config):
                problems.append(f"{stored_name} is not a tensor of {config.family}")
        problems += [f"{name} is missing" for name in expected.keys() - locations.keys()]
        for name, (file, stored_name) in locations.items():
            shape = tuple(file.get_slice(stored_name).get_shape())
            if shape != expected[name].shape:
                problems.append(
                    f"{stored_name} must have shape {expected[name].shape}; got {shape}"
                )
        if problems:
            raise ValueError(f"{folder}: {_join_problems(problems)}.")
        parameters = {}
        for path, tensor in tensors.items():
            file, stored_name = locations[tensor.name]
            try:
                parameters[path] = tensor.to_parameter(file.get_tensor(stored_name))
            except Exception as error:  # NumPy has no such dtype, or the file is damaged.
                raise ValueError(f"{folder}: {stored_name} cannot be read: {error!r}") from error
    return parameters


def load(
    source: Folder, *, revision: str | None = None, rngs: nnx.Rngs | None = None, **arguments: Any
) -> PretrainedEncoder:
    """Load a pre-trained encoder from a checkpoint.

    Args:
      source: Folder, or name on the Hugging Face hub, e.g. "google-bert/bert-base-uncased".
      revision: Branch, tag or commit on the hub. None means the newest commit.
      rngs: Random number generators. The stream `params` draws the parameters of the attention
        variant, which the checkpoint does not contain. None means seed 0.
      **arguments: `variant`, `implementation`, `precision`, `dtype` and `remat` of
        `PretrainedEncoder`.
    """
    folder = resolve_folder(source, revision=revision)
    config = read_config(folder)
    parameters = read_parameters(folder, config)  # Checks the sizes before memory is allocated.
    encoder = PretrainedEncoder(config, rngs=rngs or nnx.Rngs(0), **arguments)
    for path, array in parameters.items():
        _get_parameter(encoder, path)[...] = jnp.asarray(array)
    return encoder


def save(
    encoder: PretrainedEncoder, folder: Folder, *, tokenizer_from: Folder | None = None
) -> None:
    """Write a checkpoint that `AutoModel` of transformers can load.

    The files are config.json and model.safetensors.

    Args:
      encoder: Encoder with dot-product attention, the only variant that transformers supports.
      folder: Folder to write. It is created if it does not exist.
      tokenizer_from: Folder from which tokenizer files are copied, possibly `folder` itself. None
        copies no tokenizer.
    """
    if not isinstance(encoder, PretrainedEncoder):
        raise TypeError(f"encoder must be a PretrainedEncoder; got {type(encoder).__name__}.")
    variants = [layer.attention.variant for layer in encoder.layers]
    if any(variant is not None for variant in variants):
        raise ValueError(
            "encoder must have dot-product attention to be saved for transformers; "
            f"got {type(variants[0]).__name__}."
        )
    tokenizer: list[Path] = []
    if tokenizer_from is not None:
        tokenizer = _tokenizer_files(Path(tokenizer_from))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        tensor.name: tensor.from_parameter(np.asarray(_get_parameter(encoder, path)[...]))
        for path, tensor in tensor_names.tensors_by_path(encoder.config).items()
    }
    safetensors.numpy.save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(format_config(encoder.config), encoding="utf-8")
    for file in tokenizer:
        with contextlib.suppress(shutil.SameFileError):
            shutil.copyfile(file, folder / file.name)


def _tokenizer_files(folder: Path) -> list[Path]:
    """Return the paths of the tokenizer files in a folder. Raise a ValueError if there are none."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise ValueError(f"tokenizer_from must contain one of {TOKENIZER_FILES}; got {folder}.")
    return files


def _get_parameter(module: Any, path: ParameterPath) -> Any:
    """Return the parameter of a module at a path, such as ("layers", 0, "attention", ...)."""
    for name in path:
        module = module[name] if isinstance(name, int) else getattr(module, name)
    return module


@contextlib.contextmanager
def _open_weights(folder: Folder) -> Iterator[list[tuple[str, Any]]]:
    """Open the safetensors files of a checkpoint, and close them when the context ends.

    Yields:
      List of pairs (name of a tensor, open file that contains it).
    """
    with contextlib.ExitStack() as stack:
        stored: list[tuple[str, Any]] = []
        for path in weight_files(folder):
            try:
                file: Any = stack.enter_context(safetensors.safe_open(path, framework="np"))
            except (safetensors.SafetensorError, OSError) as error:
                raise ValueError(f"{path} must be a safetensors file: {error}") from error
            stored += [(name, file) for name in file.keys()]  # noqa: SIM118
        yield stored


def _read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file. Raise a ValueError unless it contains a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object; got {type(content).__name__}.")
    return content


def _join_problems(problems: list[str]) -> str:
    """Join the first 10 problems to one text, followed by the number of all others."""
    shown = "; ".join(sorted(problems)[:MAX_PROBLEMS])
    more = len(problems) - MAX_PROBLEMS
    return f"{shown}; and {more} more" if more > 0 else shown


def _conversion_advice(source: str, folder: str) -> str:
    """Return the part of an error message that explains how to convert a pickle checkpoint.

    Args:
      source: Folder of the pickle checkpoint, or its name on the Hugging Face hub.
      folder: Folder for the converted checkpoint.
    """
    return (
        "a pickle (.bin) may run any code and is not read. Convert it where transformers is "
        'installed: python -c "from transformers import AutoModel, AutoTokenizer; '
        f"[kind.from_pretrained('{source}').save_pretrained('{folder}') "
        'for kind in (AutoTokenizer, AutoModel)]"'
    )
