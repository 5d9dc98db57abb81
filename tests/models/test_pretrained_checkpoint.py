"""Checkpoints in the Hugging Face format: reading, writing, errors and downloads."""

import json
import shutil
import sys
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from distattn_jax.models import PretrainedConfig
from distattn_jax.models.pretrained import (
    checkpoint,
    load,
    read_config,
    read_parameters,
    resolve_folder,
    save,
    stored_dtypes,
    weight_files,
)
from distattn_jax.modules import DistanceAware
from tests.unchecked import as_users_have_it

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path):
    """Folder of a BERT checkpoint with its pre-training heads."""
    shutil.copytree(GOLDEN / "bert", tmp_path / "bert")
    return tmp_path / "bert"


def load_tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder, change):
    """Apply a function to the dictionary of tensors of a checkpoint, and save the result."""
    safetensors.numpy.save_file(change(load_tensors(folder)), folder / "model.safetensors")


def set_config(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    content = {key: value for key, value in content.items() if value != "absent"}
    path.write_text(json.dumps(content))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array)


@pytest.fixture(scope="module")
def expected():
    return read_parameters(GOLDEN / "bert", read_config(GOLDEN / "bert"))


# -- reading


def test_the_configuration_is_read():
    assert read_config(GOLDEN / "albert") == PretrainedConfig(
        family="albert",
        vocabulary=40,
        features=16,
        layers=4,
        heads=4,
        hidden_features=24,
        positions=12,
        types=2,
        embedding_features=8,
        groups=2,
        activation="gelu_new",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    roberta = read_config(GOLDEN / "roberta")
    assert (roberta.padding, roberta.first_position, roberta.max_length) == (1, 2, 12)
    assert (roberta.epsilon, roberta.types) == (1e-5, 2)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_parameters_are_all_of_the_encoder_and_have_its_paths_and_shapes(family):
    encoder = load(GOLDEN / family)
    parameters = read_parameters(GOLDEN / family, encoder.config)
    found = {path: variable[...] for path, variable in nnx.to_flat_state(nnx.state(encoder))}
    assert_same(found, parameters)
    assert {array.dtype for array in parameters.values()} == {np.dtype("float32")}


def test_name_prefixes_and_old_layer_norm_names_do_not_matter(folder, expected):
    def bare(found):
        names = {name: name.removeprefix("bert.") for name in found}
        endings = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for today, old in endings:
            names = {name: new.replace(today, old) for name, new in names.items()}
        return {names[name]: array for name, array in found.items()}

    assert any(name.startswith("bert.") for name in load_tensors(folder))
    rewrite(folder, bare)
    assert_same(read_parameters(folder, read_config(folder)), expected)


def test_a_checkpoint_may_consist_of_several_files(folder, expected):
    found = load_tensors(folder)
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, array) in enumerate(found.items()):
        parts[("a.safetensors", "b.safetensors")[number % 2]][name] = array
    for file, part in parts.items():
        safetensors.numpy.save_file(part, folder / file)
    (folder / "model.safetensors").unlink()
    index = {name: file for file, part in parts.items() for name in part}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert_same(read_parameters(folder, read_config(folder)), expected)
    assert [file.name for file in weight_files(folder)] == list(parts)
    save(load(folder), folder)  # the other files are now ignored
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"b\.safetensors must be a safetensors file"):
        read_config(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_bfloat16_and_float16_become_float32(folder, expected, dtype):
    rewrite(folder, lambda found: {name: array.astype(dtype) for name, array in found.items()})
    parameters = read_parameters(folder, read_config(folder))
    rounded = {path: x.astype(dtype).astype(np.float32) for path, x in expected.items()}
    assert_same(parameters, rounded)
    assert {array.dtype for array in parameters.values()} == {np.dtype("float32")}
    assert stored_dtypes(folder) == ["BF16" if dtype == ml_dtypes.bfloat16 else "F16"]


def test_a_checkpoint_without_a_pooler_gives_an_encoder_without_one(folder, expected):
    rewrite(folder, lambda found: {n: x for n, x in found.items() if "pooler" not in n})
    config = read_config(folder)
    assert not config.pooler
    without = {path: array for path, array in expected.items() if path[0] != "pooler"}
    assert_same(read_parameters(folder, config), without)
    assert load(folder).pooler is None
    # A pooler in the file is ignored if the configuration has none.
    assert_same(read_parameters(GOLDEN / "bert", config), without)


def test_the_family_is_inferred_from_name_prefixes_without_model_type(folder):
    set_config(folder, model_type="absent")
    assert read_config(folder).family == "bert"


# -- errors


def test_one_error_names_missing_unexpected_and_misshapen_tensors(folder):
    def corrupt(found):
        found["bert.encoder.layer.0.extra.weight"] = np.zeros(3)
        found["bert.pooler.dense.weight"] = np.zeros((16, 17))
        del found["bert.encoder.layer.1.attention.self.query.bias"]
        return found

    rewrite(folder, corrupt)
    with pytest.raises(ValueError, match="bert: ") as caught:
        read_parameters(folder, read_config(folder))
    message = str(caught.value)
    assert "bert.encoder.layer.0.extra.weight is not a tensor of bert" in message
    assert "bert.pooler.dense.weight must have shape (16, 16); got (16, 17)" in message
    assert "encoder.layer.1.attention.self.query.bias is missing" in message
    assert message.count(";") == 3


def test_the_error_names_a_tensor_that_is_stored_twice(folder):
    name = "embeddings.LayerNorm.bias"
    rewrite(folder, lambda found: found | {name: found[f"bert.{name}"]})
    with pytest.raises(ValueError, match=f"{name} is stored twice"):
        read_parameters(folder, read_config(folder))


def test_the_error_for_a_pickle_explains_the_conversion(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: a pickle .*save_pretrained\("):
        load(folder)


def test_a_folder_with_missing_or_corrupt_files_is_rejected(folder):
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model\.safetensors must be a safetensors file"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"must contain model\.safetensors or"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must contain config\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of bert, .*; got 'gpt2'"),
        ({"position_embedding_type": "x"}, "position_embedding_type must be 'absolute'; got 'x'"),
        ({"is_decoder": True}, "is_decoder must be False; got True"),
        ({"inner_group_num": 2}, "inner_group_num must be 1; got 2"),
        ({"hidden_act": "mish"}, "hidden_act must be one of gelu, .*; got 'mish'"),
        (
            {"hidden_size": "absent", "vocab_size": "absent"},
            "vocab_size, hidden_size must be given",
        ),
        ({"hidden_size": 16.5}, r"hidden_size must be of type int; got 16\.5"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps must be of type float; got 'small'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1; got 0"),
        ({"hidden_dropout_prob": 1.5}, r"hidden_dropout_prob must be from 0 to below 1; got"),
        ({"num_attention_heads": 5}, r"hidden_size \(16\) must be a multiple of num_att"),
        ({"num_hidden_layers": 999999999}, "num_hidden_layers must be at most 1000; got 999999999"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be above 0 and below 1; got nan"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps must be above 0 and below 1"),
        ({"pad_token_id": -1}, "pad_token_id must be a token, 0 to 39; got -1"),
        ({"model_type": "roberta", "pad_token_id": 30}, "max_position_embeddings must be above 31"),
    ],
)
def test_the_error_for_an_unsupported_configuration_names_the_file(folder, changes, message):
    set_config(folder, **changes)
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read_config(folder)


def test_null_in_config_json_means_the_default(folder):
    expected = read_config(folder)
    set_config(folder, pad_token_id=None, position_embedding_type=None, pruned_heads=None)
    assert read_config(folder) == expected
    set_config(folder, vocab_size=None)
    with pytest.raises(ValueError, match="vocab_size must be given"):
        read_config(folder)


def test_the_error_names_a_file_without_a_json_object(folder):
    for content, message in (
        (b"{", "must be a JSON file"),
        (b"[" * 10**5, "must be a JSON file: .*recursion"),
        (b"\xff", "must be a JSON file: .*utf-8"),
        (b"[]", "must contain a JSON object; got list"),
    ):
        (folder / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"config\.json {message}"):
            read_config(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    with pytest.raises(ValueError, match=r"index\.json must contain weight_map"):
        read_parameters(folder, read_config(GOLDEN / "bert"))
    for name in ("../b", "/b", "\ud800"):
        index = json.dumps({"weight_map": {"a": name}})
        (folder / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ValueError, match=r"index\.json: '.*' must be a file in this folder"):
            read_parameters(folder, read_config(GOLDEN / "bert"))


def test_sizes_are_checked_before_memory_is_allocated(folder):
    set_config(folder, vocab_size=10**12)
    with pytest.raises(ValueError, match=r"word_embeddings.weight must have shape \(10+, 16\)"):
        load(folder)
    set_config(folder, vocab_size=40, num_hidden_layers=1000)
    with pytest.raises(ValueError, match=r"is missing; .*; and \d+ more"):
        load(folder)


@pytest.mark.parametrize("damage", [0, 8, 20, 200, "end"])
def test_a_damaged_weight_file_is_an_error_that_names_it(folder, damage):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "end":
        del content[-1]
    else:
        content[damage] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path} must be a safetensors file"):
        load(folder)


# -- writing


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_saved_encoder_has_the_tensors_of_transformers_and_loads_again(family, tmp_path):
    source = GOLDEN / family
    encoder = load(source)
    save(encoder, tmp_path / "new")
    names = {name.removeprefix(f"{family}."): array for name, array in load_tensors(source).items()}
    found = load_tensors(tmp_path / "new")
    assert_same(found, {name: names[name] for name in found})
    assert len(found) == len(read_parameters(source, encoder.config))
    assert read_config(tmp_path / "new") == encoder.config
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    original = json.loads((source / "config.json").read_text())
    for key in written.keys() - {"architectures", "classifier_dropout"}:
        assert written[key] == original[key]


def test_tokenizer_files_are_copied_on_request(folder, tmp_path):
    encoder = load(folder)
    with pytest.raises(ValueError, match="tokenizer_from must contain one of"):
        save(encoder, tmp_path / "new", tokenizer_from=folder)
    assert not (tmp_path / "new").exists()
    (folder / "vocab.txt").write_text("[PAD]\n")
    save(encoder, folder, tokenizer_from=folder)  # source and target may be the same folder
    save(encoder, tmp_path / "new", tokenizer_from=folder)
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"


def test_saving_requires_an_encoder_with_dot_product_attention(tmp_path):
    encoder = load(GOLDEN / "albert", variant=lambda rngs: DistanceAware(4, rngs=rngs))
    with pytest.raises(ValueError, match=r"dot-product attention .* got DistanceAware"):
        save(encoder, tmp_path)
    with pytest.raises(TypeError, match="must be a PretrainedEncoder; got list"):
        as_users_have_it(checkpoint).save([encoder], tmp_path)


# -- names on the hub


def test_a_name_is_downloaded_from_the_hub(monkeypatch):
    requests = []

    def snapshot_download(name, *, revision, allow_patterns):
        requests.append((name, revision))
        assert "pytorch_model.bin" not in allow_patterns
        return str(GOLDEN / "bert")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert resolve_folder("someone/bert-tiny", revision="v1") == GOLDEN / "bert"
    assert requests == [("someone/bert-tiny", "v1")]
    assert resolve_folder(GOLDEN / "albert") == GOLDEN / "albert"
    with pytest.raises(ValueError, match="must be a folder or a name on the hub; got /no/such"):
        resolve_folder("/no/such/folder")


def test_the_error_for_a_pickle_on_the_hub_explains_the_conversion(monkeypatch, folder):
    (folder / "model.safetensors").unlink()  # a pickle matches no pattern of the download
    hub = types.SimpleNamespace(snapshot_download=lambda *_, **__: str(folder))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match=r"from_pretrained\('a/b'\)\.save_pretrained\('FOLDER'\)"):
        load("a/b")


def test_the_error_for_a_failed_download_mentions_folder_and_hub(monkeypatch):
    def snapshot_download(*arguments, **options):
        raise OSError("no network")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match=r"no folder minilm, .* download .* failed: no network"):
        resolve_folder("minilm")


def test_the_error_without_the_hub_package_explains_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"no folder someone/bert.*distattn-jax\[hub\]"):
        load("someone/bert")
