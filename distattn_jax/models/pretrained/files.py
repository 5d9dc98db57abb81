"""Folders in the Hugging Face layout: config.json and safetensors, read and written."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16)
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
from flax import nnx

from distattn_jax.models.pretrained import tensors
from distattn_jax.models.pretrained.config import (
    FAMILIES,
    PretrainedConfig,
    parse_config,
    written,
)
from distattn_jax.models.pretrained.encoder import PretrainedEncoder

Folder = str | Path | epath.Path
ONE, SEVERAL = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)


def folder_of(source: Folder, *, revision: str | None = None) -> Path:
    """The folder itself, or where the hub's model of this name lies once it is downloaded.

    Args:
      source: a folder, or a name such as "google-bert/bert-base-uncased".
      revision: branch, tag or commit of the hub; None: the newest.
    """
    if Path(source).is_dir():
        return Path(source)
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(source)):
        raise ValueError(f"pretrained must be a folder or a name on the hub; got {source}.")
    try:
        import huggingface_hub  # only where it is needed: an extra
    except ImportError as error:
        raise ValueError(
            f"There is no folder {source}; to take it for a name on the hub, "
            'pip install "distattn-jax[hub]".'
        ) from error
    files = ["config.json", "*.safetensors", SEVERAL, *TOKENIZER]
    try:
        found = huggingface_hub.snapshot_download(
            str(source), revision=revision, allow_patterns=files
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"There is no folder {source}, and the hub did not give a model of this name: {error}"
        ) from error
    if not list(Path(found).glob("*.safetensors")):
        raise ValueError(
            f"{source} has no safetensors on the hub; {_conversion(str(source), 'FOLDER')}"
        )
    return Path(found)


def read_config(folder: Folder) -> PretrainedConfig:
    """What the model of a folder is made of, from its config.json and its tensors' names."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} must hold config.json.")
    given = _object(path)
    with _opened(folder) as files:
        names = [name for file in files for name in file.keys()]  # noqa: SIM118
    prefixes = [family for family in FAMILIES if any(n.startswith(f"{family}.") for n in names)]
    family = prefixes[0] if len(prefixes) == 1 else None
    has_pooler = any(re.match(r"(\w+\.)?pooler\.", name) for name in names)
    return parse_config(given, path, family=family, pooler=has_pooler)


def weight_files(folder: Folder) -> list[Path]:
    """The files of a folder that the tensors are read from; others may lie beside them."""
    folder = Path(folder)
    if (folder / ONE).is_file():
        return [folder / ONE]
    if (folder / SEVERAL).is_file():
        parts = _object(folder / SEVERAL).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
            raise ValueError(
                f"{folder / SEVERAL} must hold a weight_map, names of files by tensor."
            )
        return [folder / name for name in sorted(set(parts.values()))]
    if pickles := sorted(folder.glob("*.bin")):
        raise ValueError(f"{pickles[0]}: {_conversion(str(folder), str(folder))}")
    raise ValueError(f"{folder} must hold {ONE} or {SEVERAL}.")


def stored_types(folder: Folder) -> list[str]:
    """The number types that the tensors of a folder are stored in, as safetensors calls them."""
    with _opened(folder) as files:
        found = {
            file.get_slice(name).get_dtype()
            for file in files
            for name in file.keys()  # noqa: SIM118
        }
    return sorted(found)


def parameters(folder: Folder, config: PretrainedConfig) -> dict[tensors.Path, np.ndarray]:
    """The parameters of `PretrainedEncoder(config)`, float32, by their paths.

    Tensors of other tasks' heads are left out, and the pooler if `config.pooler` is False.
    """
    wanted = tensors.tensors_of(config)
    with _opened(folder) as files:
        found, problems = _places(files, config)
        expected = {tensor.name: tensor for tensor in wanted.values()}
        for name in expected.keys() - found.keys():
            problems.append(f"{name} is missing")
        for name, (file, stored) in found.items():
            shape = tuple(file.get_slice(stored).get_shape())
            if shape != expected[name].shape:
                problems.append(f"{stored} must have shape {expected[name].shape}; got {shape}")
        if problems:
            raise ValueError(f"{folder}: {'; '.join(sorted(problems))}.")
        given = {}
        for path, tensor in wanted.items():
            file, stored = found[tensor.name]
            given[path] = tensor.parameter(file.get_tensor(stored))
    return given


def load(
    source: Folder, *, revision: str | None = None, rngs: nnx.Rngs | None = None, **arguments: Any
) -> PretrainedEncoder:
    """The encoder of a folder, or of a name on the hub.

    Args:
      source, revision: as in `folder_of`.
      rngs: draws what no file holds, the parameters of a variant.
      **arguments: the others of `PretrainedEncoder`.
    """
    folder = folder_of(source, revision=revision)
    config = read_config(folder)
    encoder = PretrainedEncoder(config, rngs=rngs or nnx.Rngs(0), **arguments)
    for path, array in parameters(folder, config).items():
        _at(encoder, path)[...] = jnp.asarray(array)
    return encoder


def save(
    encoder: PretrainedEncoder, folder: Folder, *, tokenizer_from: Folder | None = None
) -> None:
    """Writes config.json and model.safetensors, which transformers' `AutoModel` loads.

    Args:
      encoder: with dot-product attention: transformers has no other. Of a classifier, its encoder.
      folder: where to; made if it is not there.
      tokenizer_from: the folder whose tokenizer files are copied; may be `folder` itself.
    """
    if not isinstance(encoder, PretrainedEncoder):
        raise TypeError(f"encoder must be a PretrainedEncoder; got {type(encoder).__name__}.")
    variants = [layer.attention.variant for layer in encoder.layers]
    if any(variant is not None for variant in variants):
        raise ValueError(
            "encoder must have dot-product attention to be saved for transformers; "
            f"got {type(variants[0]).__name__}."
        )
    beside: list[Path] = [] if tokenizer_from is None else _tokenizer(Path(tokenizer_from))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        tensor.name: tensor.stored(np.asarray(_at(encoder, path)[...]))
        for path, tensor in tensors.tensors_of(encoder.config).items()
    }
    safetensors.numpy.save_file(stored, folder / ONE, metadata={"format": "pt"})
    (folder / "config.json").write_text(written(encoder.config), encoding="utf-8")
    for file in beside:
        with contextlib.suppress(shutil.SameFileError):
            shutil.copyfile(file, folder / file.name)


def _tokenizer(folder: Path) -> list[Path]:
    """The files of the tokenizer in a folder."""
    files = [folder / name for name in TOKENIZER if (folder / name).is_file()]
    if not files:
        raise ValueError(f"tokenizer_from must hold one of {TOKENIZER}; got {folder}.")
    return files


def _at(module: Any, path: tensors.Path) -> Any:
    """The parameter with this path."""
    for name in path:
        module = module[name] if isinstance(name, int) else getattr(module, name)
    return module


def _places(files: list[Any], config: PretrainedConfig) -> tuple[dict[str, Any], list[str]]:
    """Where each tensor of the model lies, by its plain name; and what should not be there."""
    known = {tensor.name for tensor in tensors.tensors_of(config).values()}
    found: dict[str, Any] = {}
    problems = []
    for file in files:
        for stored in file.keys():  # noqa: SIM118
            name = tensors.plain_name(stored, config.family)
            if name in found:
                problems.append(f"{name} is there twice")
            elif name in known:
                found[name] = (file, stored)
            elif not tensors.is_leftover(name, config):
                problems.append(f"{stored} is not a tensor of {config.family}")
    return found, problems


@contextlib.contextmanager
def _opened(folder: Folder) -> Iterator[list[Any]]:
    """The open safetensors files of a folder."""
    paths = weight_files(folder)
    with contextlib.ExitStack() as stack:
        files = []
        for path in paths:
            try:
                files.append(stack.enter_context(safetensors.safe_open(path, framework="np")))
            except (safetensors.SafetensorError, FileNotFoundError) as error:
                raise ValueError(f"{path} must be a safetensors file: {error}") from error
        yield files


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object; got {type(content).__name__}.")
    return content


def _conversion(source: str, folder: str) -> str:
    """What to do with a pickle."""
    return (
        "a pickle (.bin) may run any code and is not read; convert it where transformers is "
        'installed: python -c "from transformers import AutoModel, AutoTokenizer; '
        f"[kind.from_pretrained('{source}').save_pretrained('{folder}') "
        'for kind in (AutoTokenizer, AutoModel)]"'
    )
