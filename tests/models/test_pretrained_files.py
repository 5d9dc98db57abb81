"""Folders in the Hugging Face layout: what is read, what is written, what is refused."""

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
    files,
    folder_of,
    load,
    parameters,
    read_config,
    save,
    stored_types,
    weight_files,
)
from distattn_jax.modules import DistanceAware
from tests.unchecked import as_users_have_it

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path):
    """BERT with the heads of its pre-training."""
    shutil.copytree(GOLDEN / "bert", tmp_path / "bert")
    return tmp_path / "bert"


def tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder, change):
    """The file with its tensors, by name, passed through a function."""
    safetensors.numpy.save_file(change(tensors(folder)), folder / "model.safetensors")


def set_config(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    content = {key: value for key, value in content.items() if value != "absent"}
    path.write_text(json.dumps(content))


def assert_same(given, wanted):
    assert given.keys() == wanted.keys()
    for path, array in wanted.items():
        np.testing.assert_array_equal(given[path], array)


@pytest.fixture(scope="module")
def wanted():
    return parameters(GOLDEN / "bert", read_config(GOLDEN / "bert"))


# -- read


def test_the_configuration_is_in_our_words():
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
    assert (roberta.padding, roberta.first_position, roberta.longest) == (1, 2, 12)
    assert (roberta.epsilon, roberta.types) == (1e-5, 2)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_parameters_are_all_of_the_encoder_and_have_its_paths_and_shapes(family):
    encoder = load(GOLDEN / family)
    given = parameters(GOLDEN / family, encoder.config)
    own = {path: variable[...] for path, variable in nnx.to_flat_state(nnx.state(encoder))}
    assert_same(own, given)
    assert {array.dtype for array in given.values()} == {np.dtype("float32")}


def test_prefixes_and_old_endings_do_not_matter(folder, wanted):
    def bare(found):
        names = {name: name.removeprefix("bert.") for name in found}
        endings = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for today, old in endings:
            names = {name: new.replace(today, old) for name, new in names.items()}
        return {names[name]: array for name, array in found.items()}

    assert any(name.startswith("bert.") for name in tensors(folder))
    rewrite(folder, bare)
    assert_same(parameters(folder, read_config(folder)), wanted)


def test_several_files_are_one_model(folder, wanted):
    found = tensors(folder)
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, array) in enumerate(found.items()):
        parts[("a.safetensors", "b.safetensors")[number % 2]][name] = array
    for file, part in parts.items():
        safetensors.numpy.save_file(part, folder / file)
    (folder / "model.safetensors").unlink()
    index = {name: file for file, part in parts.items() for name in part}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert_same(parameters(folder, read_config(folder)), wanted)
    assert [file.name for file in weight_files(folder)] == list(parts)
    save(load(folder), folder)  # what lies beside it now is not read
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"b\.safetensors must be a safetensors file"):
        read_config(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits_become_float32(folder, wanted, dtype):
    rewrite(folder, lambda found: {name: array.astype(dtype) for name, array in found.items()})
    given = parameters(folder, read_config(folder))
    rounded = {path: x.astype(dtype).astype(np.float32) for path, x in wanted.items()}
    assert_same(given, rounded)
    assert {array.dtype for array in given.values()} == {np.dtype("float32")}
    assert stored_types(folder) == ["BF16" if dtype == ml_dtypes.bfloat16 else "F16"]


def test_a_model_without_a_pooler_has_no_pooled_output(folder, wanted):
    rewrite(folder, lambda found: {n: x for n, x in found.items() if "pooler" not in n})
    config = read_config(folder)
    assert not config.pooler
    without = {path: array for path, array in wanted.items() if path[0] != "pooler"}
    assert_same(parameters(folder, config), without)
    assert load(folder).pooler is None
    # And from a file that has one, when it is not wanted.
    assert_same(parameters(GOLDEN / "bert", config), without)


def test_a_file_older_than_model_type_is_known_by_its_prefixes(folder):
    set_config(folder, model_type="absent")
    assert read_config(folder).family == "bert"


# -- refused


def test_a_missing_an_extra_and_a_misshapen_tensor_are_named_together(folder):
    def spoil(found):
        found["bert.encoder.layer.0.extra.weight"] = np.zeros(3)
        found["bert.pooler.dense.weight"] = np.zeros((16, 17))
        del found["bert.encoder.layer.1.attention.self.query.bias"]
        return found

    rewrite(folder, spoil)
    with pytest.raises(ValueError, match="bert: ") as caught:
        parameters(folder, read_config(folder))
    message = str(caught.value)
    assert "bert.encoder.layer.0.extra.weight is not a tensor of bert" in message
    assert "bert.pooler.dense.weight must have shape (16, 16); got (16, 17)" in message
    assert "encoder.layer.1.attention.self.query.bias is missing" in message
    assert message.count(";") == 3


def test_a_tensor_that_is_there_twice_is_named(folder):
    name = "embeddings.LayerNorm.bias"
    rewrite(folder, lambda found: found | {name: found[f"bert.{name}"]})
    with pytest.raises(ValueError, match=f"{name} is there twice"):
        parameters(folder, read_config(folder))


def test_a_pickle_is_refused_with_the_way_to_convert_it(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: a pickle .*save_pretrained\("):
        load(folder)


def test_a_folder_without_weights_or_with_broken_ones_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model\.safetensors must be a safetensors file"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"must hold model\.safetensors or"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must hold config\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of bert, .*; got 'gpt2'"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type must be 'absolute'; got 'relative_key'",
        ),
        ({"is_decoder": True}, "is_decoder must be False; got True"),
        ({"inner_group_num": 2}, "inner_group_num must be 1; got 2"),
        ({"hidden_act": "mish"}, "hidden_act must be one of gelu, .*; got 'mish'"),
        (
            {"hidden_size": "absent", "vocab_size": "absent"},
            "vocab_size, hidden_size must be given",
        ),
        ({"hidden_size": 16.5}, r"hidden_size must be of type int; got 16\.5"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps must be of type float; got 'small'"),
        ({"num_attention_heads": 0}, "heads must be at least 1; got 0"),
        ({"hidden_dropout_prob": 1.5}, r"dropout_rate must be from 0 to below 1; got 1\.5"),
        ({"num_attention_heads": 5}, r"features \(16\) must be a multiple of heads \(5\)"),
    ],
)
def test_a_configuration_that_is_not_built_here_is_named_with_its_file(folder, changes, message):
    set_config(folder, **changes)
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read_config(folder)


def test_what_is_null_is_as_good_as_missing(folder):
    wanted = read_config(folder)
    set_config(folder, pad_token_id=None, position_embedding_type=None, pruned_heads=None)
    assert read_config(folder) == wanted
    set_config(folder, vocab_size=None)
    with pytest.raises(ValueError, match="vocab_size must be given"):
        read_config(folder)


def test_a_file_that_is_no_json_object_is_named(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        read_config(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json must hold an object; got list"):
        read_config(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    with pytest.raises(ValueError, match=r"index\.json must hold a weight_map"):
        parameters(folder, read_config(GOLDEN / "bert"))


# -- written


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_what_is_saved_holds_the_tensors_of_transformers_and_loads_again(family, tmp_path):
    source = GOLDEN / family
    encoder = load(source)
    save(encoder, tmp_path / "new")
    names = {name.removeprefix(f"{family}."): array for name, array in tensors(source).items()}
    found = tensors(tmp_path / "new")
    assert_same(found, {name: names[name] for name in found})
    assert len(found) == len(parameters(source, encoder.config))
    assert read_config(tmp_path / "new") == encoder.config
    given = json.loads((tmp_path / "new" / "config.json").read_text())
    theirs = json.loads((source / "config.json").read_text())
    for key in given.keys() - {"architectures", "classifier_dropout"}:
        assert given[key] == theirs[key]


def test_the_tokenizer_comes_along_when_asked_for(folder, tmp_path):
    encoder = load(folder)
    with pytest.raises(ValueError, match="tokenizer_from must hold one of"):
        save(encoder, tmp_path / "new", tokenizer_from=folder)
    assert not (tmp_path / "new").exists()
    (folder / "vocab.txt").write_text("[PAD]\n")
    save(encoder, folder, tokenizer_from=folder)  # in its place
    save(encoder, tmp_path / "new", tokenizer_from=folder)
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"


def test_another_attention_is_not_saved_as_if_it_were_none(tmp_path):
    encoder = load(GOLDEN / "albert", variant=lambda rngs: DistanceAware(4, rngs=rngs))
    with pytest.raises(ValueError, match=r"dot-product attention .* got DistanceAware"):
        save(encoder, tmp_path)
    with pytest.raises(TypeError, match="must be a PretrainedEncoder; got list"):
        as_users_have_it(files).save([encoder], tmp_path)


# -- by name


def test_a_name_is_looked_up_on_the_hub(monkeypatch):
    asked = []

    def snapshot_download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        assert "pytorch_model.bin" not in allow_patterns
        return str(GOLDEN / "bert")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert folder_of("someone/bert-tiny", revision="v1") == GOLDEN / "bert"
    assert asked == [("someone/bert-tiny", "v1")]
    assert folder_of(GOLDEN / "albert") == GOLDEN / "albert"
    with pytest.raises(ValueError, match="must be a folder or a name on the hub; got /no/such"):
        folder_of("/no/such/folder")


def test_a_model_that_the_hub_has_as_a_pickle_is_refused_with_the_way_to_convert_it(
    monkeypatch, folder
):
    (folder / "model.safetensors").unlink()  # what is not asked for does not come
    hub = types.SimpleNamespace(snapshot_download=lambda *_, **__: str(folder))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match=r"from_pretrained\('a/b'\)\.save_pretrained\('FOLDER'\)"):
        load("a/b")


def test_a_hub_that_cannot_be_reached_is_not_the_last_word(monkeypatch):
    def snapshot_download(*arguments, **options):
        raise OSError("no network")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match=r"no folder minilm, and the hub did not .*: no network"):
        folder_of("minilm")


def test_without_the_hub_a_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"no folder someone/bert.*distattn-jax\[hub\]"):
        load("someone/bert")
