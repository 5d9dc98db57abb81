# %% [markdown]
# # What does a translator learn about word order?
#
# ![alignments of a sentence, and norms of position vectors](attachment:answer.png)
#
# **Answer.** A tiny translator with relative positions (Shaw et al. 2018) learns a toy language in
# seconds. Its cross-attention shows which word each word comes from: adjectives and nouns cross over.
# Its tables show which relative positions a head tells apart: they have long vectors.

# %% tags=["remove-cell"]
# Only Colab needs this cell. Run `make dist` in a clone of the project, then choose the file
# dist/distattn_jax-*.whl in the dialog that opens here.
import importlib.util
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("distattn_jax") is None:
    import subprocess

    from google.colab import files

    wheels = [name for name in files.upload() if name.endswith(".whl")]
    if not wheels:
        raise FileNotFoundError("Upload dist/distattn_jax-*.whl, which `make dist` writes.")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wheels], check=True)

# %%
# %matplotlib inline
import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from distattn_jax import plot
from distattn_jax.models import Sizes, Translator, shift_right
from distattn_jax.tasks import relation_tables

# %% [markdown]
# ## A toy language
#
# The translation has words of its own, and the adjective follows its noun, as in French.

# %%
WORDS = {
    "determiner": {"the": "le", "a": "un"},
    "adjective": {"red": "rouge", "big": "grand", "old": "vieux", "sad": "triste"},
    "noun": {"dog": "chien", "cat": "chat", "bird": "oiseau", "bear": "ours", "fish": "poisson"},
    "verb": {"sees": "voit", "hears": "entend", "likes": "aime"},
}
PADDING, END, FIRST = 0, 2, 3  # token ids that the models of this package use
pairs = [pair for kind in WORDS.values() for pair in kind.items()]
names = ["", "?", "end", *itertools.chain.from_iterable(pairs)]


def draw_sentence(generator):
    """Return an English sentence and its translation, as lists of words."""

    def draw(kind):
        options = list(WORDS[kind].items())
        return options[generator.integers(len(options))]

    english, french = [], []
    for phrase in range(2):
        if phrase == 1:
            verb = draw("verb")
            english.append(verb[0])
            french.append(verb[1])
        determiner, noun = draw("determiner"), draw("noun")
        adjectives = [draw("adjective") for _ in range(generator.integers(0, 2))]
        english += [determiner[0], *(a[0] for a in adjectives), noun[0]]
        french += [determiner[1], noun[1], *(a[1] for a in adjectives)]
    return english, french


def encode(sentences, length=8):
    """Return token ids with an end token, padded, and the number of tokens."""
    ids = np.zeros((len(sentences), length), np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence) + 1] = [*map(names.index, sentence), END]
    return ids, (ids != PADDING).sum(axis=1).astype(np.int32)


generator = np.random.default_rng(0)
examples = [draw_sentence(generator) for _ in range(2048)]
source, source_lengths = encode([english for english, _ in examples])
target, target_lengths = encode([french for _, french in examples])
print(" ".join(examples[0][0]), "->", " ".join(examples[0][1]))

# %% [markdown]
# ## Train

# %%
sizes = Sizes(heads=4, head_features=8, features=32, layers=1, hidden_features=64, max_distance=4)
model = Translator(len(names), method="relative_position", sizes=sizes, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, source, source_lengths, target, target_lengths):
    """Take one training step and return the loss."""

    def loss(model):
        inputs = shift_right(target)
        logits = model(source, source_lengths, inputs, target_lengths).logits
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return jnp.mean(losses, where=target != PADDING)

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


batches = np.random.default_rng(1).integers(0, len(examples), (120, 64))
arrays = source, source_lengths, target, target_lengths
losses = [float(step(model, optimizer, *(array[rows] for array in arrays))) for rows in batches]
print(f"loss: {losses[0]:.2f} at first, {np.mean(losses[-10:]):.3f} at the end")

# %% [markdown]
# ## Translate
#
# The decoder chooses one word after the other, each time the most probable one.

# %%
SENTENCE = "the old bear likes a red fish".split()
ids, length = encode([SENTENCE])
search = nnx.jit(Translator.translate, static_argnames=("longest", "beam_size"))
found = search(model, ids, length, max_lengths=jnp.array([8]), longest=8, beam_size=1)
output = found.tokens[0, 0, : found.lengths[0, 0]]
translation = [names[i] for i in output]
print(" ".join(translation[:-1]))

# %% [markdown]
# ## Look inside
#
# The left map is the mean of the heads of the cross-attention: a row is a word of the translation,
# and its darkest cell is the word it comes from. On the right, each row is a head of the encoder: how
# long is the vector of each relative position?

# %% tags=["answer"]
decoder_inputs = shift_right(output[None])
outputs = model(ids[:, : length[0]], length, decoder_inputs, jnp.array([len(output)]), weights=True)
alignment = outputs.cross_weights[0, 0].mean(axis=0)
parameters = jax.tree.map(lambda x: x[None], nnx.to_pure_dict(nnx.state(model, nnx.Param)))
table = relation_tables(parameters, 0)["encoder"]["keys"]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.imshow(alignment, cmap="Blues", vmin=0, vmax=1)
left.set_xticks(range(length[0]), [*SENTENCE, "end"], rotation=90)
left.set_yticks(range(len(output)), translation)
left.set(title="cross-attention", xlabel="source", ylabel="translation")
image = right.imshow(table.norms[0], cmap="Blues", vmin=0, extent=(-4.5, 4.5, 4.5, 0.5))
right.set_aspect("auto")
right.set(title="position vectors of the encoder", xlabel="relative position", ylabel="head")
right.set_yticks(range(1, 5))
figure.colorbar(image, ax=right, label="norm")
plt.show()

# %% [markdown]
# Two relative positions act alike where their vectors are similar.

# %%
tables = relation_tables(parameters, 0)["encoder"]
plot.relation_similarities(
    {kind: table.similarities for kind, table in tables.items()}, table.positions
)

# %% [markdown]
# **Take home:** `python -m experiments train parallel_text --data.manual-dir FOLDER` does the same with
# your own translations, and `explore` shows all heads.
