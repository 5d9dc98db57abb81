"""Make tests/models/golden: small models of transformers and their outputs for a few texts.

Requires transformers and torch. `python tests/models/make_golden.py` writes the small models and
their outputs. With folders of models as arguments, it writes expected.npz into each of them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

GOLDEN = Path(__file__).parent / "golden"
LENGTHS = (9, 5, 1)  # lengths of the texts for the small models
LONGER_LENGTHS = (100, 57, 32, 1)  # lengths of the texts for other models
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}


def make_models():
    """Yield one model of each family, with the name prefixes and options of published weights."""
    yield transformers.BertForPreTraining(
        transformers.BertConfig(**SIZES, max_position_embeddings=12)
    )
    yield transformers.RobertaModel(
        transformers.RobertaConfig(
            **SIZES, max_position_embeddings=14, type_vocab_size=2, layer_norm_eps=1e-5
        )
    )
    albert = SIZES | {"num_hidden_layers": 4, "embedding_size": 8, "num_hidden_groups": 2}
    yield transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**albert, max_position_embeddings=12)
    )


def draw_parameters(model):
    """Draw parameters so large that the attention is far from uniform."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter += 1


def compute_expected(folder, lengths, seed=0):
    """Return random texts of the given lengths, padded on the right, and their outputs."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    config, longest = model.config, max(lengths)
    lengths = np.asarray(lengths)
    is_valid = np.arange(longest)[None] < lengths[:, None]
    random = np.random.default_rng(seed)
    tokens = random.integers(3, config.vocab_size, is_valid.shape)
    tokens = np.where(is_valid, tokens, config.pad_token_id)
    types = np.where(is_valid, random.integers(0, config.type_vocab_size, is_valid.shape), 0)
    with torch.no_grad():
        output = model(
            input_ids=torch.asarray(tokens),
            attention_mask=torch.asarray(is_valid.astype(np.int64)),
            token_type_ids=torch.asarray(types),
            output_attentions=True,
            output_hidden_states=True,
        )
    return {
        "tokens": tokens.astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "types": types.astype(np.int32),
        "states": torch.stack(output.hidden_states, 1).numpy(),
        "pooled": output.pooler_output.numpy(),
        "weights": torch.stack(output.attentions, 1).numpy(),
    }


def main(folders):
    """Write expected.npz into each folder. Without folders, make the small models first."""
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    lengths = LONGER_LENGTHS if folders else LENGTHS
    if not folders:
        torch.manual_seed(0)
        for model in make_models():
            draw_parameters(model)
            folder = GOLDEN / model.config.model_type
            model.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            folders.append(folder)
    for folder in folders:
        np.savez_compressed(Path(folder) / "expected.npz", **compute_expected(folder, lengths))


if __name__ == "__main__":
    main(sys.argv[1:])
