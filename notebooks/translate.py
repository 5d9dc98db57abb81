# %% [markdown]
# # What does a translator learn about word order?
#
# ![alignment of a sentence, and sentences that go wrong without a relative position](attachment:answer.png)
#
# **Answer.** It learns where each word of the translation comes from: in the left picture, adjectives
# and nouns cross over. It learns this from position vectors (Shaw et al. 2018). Without them, three
# sentences of the same words get the same translation. The right picture takes away the vector of one
# relative position at a time: a few positions carry the order, and the translator can do without the
# others.

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

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from distattn_jax.models import Sizes, Translator, shift_right

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
ORDERS = [
    "the old bear likes a red fish",
    "the red bear likes a old fish",
    "a red fish likes the old bear",
]
ids, lengths = encode([sentence.split() for sentence in ORDERS])
search = nnx.jit(Translator.translate, static_argnames=("longest", "beam_size"))


def translate(model):
    """Return the translations of the three sentences, each a list of words with the end token."""
    found = search(model, ids, lengths, max_lengths=jnp.full(3, 8), longest=8, beam_size=1)
    pairs = zip(found.tokens[:, 0], found.lengths[:, 0], strict=True)
    return [[names[i] for i in tokens[:length]] for tokens, length in pairs]


translations = translate(model)
for sentence, translation in zip(ORDERS, translations, strict=True):
    print(f"{sentence:>30} -> {' '.join(translation[:-1])}")

# %% [markdown]
# The three sentences have the same words. Only their order says who is old and who likes whom.
#
# ## Take the positions away
#
# Each head has one vector for each relative position from -4 to 4, in a table for keys and a table for
# values. If all vectors of a table are equal, the head sees words without their order. We replace all
# vectors of the encoder by their mean, and train no further.


# %%
def forget(layers, positions):
    """Replace the vectors of these relative positions by the mean of their table."""
    for layer in layers:
        for table in (layer.attention.variant.keys, layer.attention.variant.values):
            vectors = table[...]  # (N, 2k + 1, H)
            rows = np.asarray(positions) + vectors.shape[1] // 2
            table[...] = vectors.at[:, rows].set(vectors.mean(axis=1, keepdims=True))


without_order = nnx.clone(model)
forget(without_order.encoder.layers, range(-4, 5))
for sentence, translation in zip(ORDERS, translate(without_order), strict=True):
    print(f"{sentence:>30} -> {' '.join(translation[:-1])}")

# %% [markdown]
# Now all three translations are the same: the order was in the vectors.
#
# ## Which positions carry the order?
#
# The same experiment with one relative position at a time, in the encoder and in the decoder, on 256
# sentences. The bars show how many of them then have a wrong word. The last vector on each side also
# stands for all positions that are farther away. The decoder sees no later words.
#
# The map on the left is the cross-attention, the mean over heads: a row is a word of the translation,
# and its darkest cell is the word it comes from.


# %% tags=["answer"]
@nnx.jit
def count_wrong(model):
    """Return the share (%) of sentences with at least one wrong word."""
    source, source_lengths, target, target_lengths = (array[:256] for array in arrays)
    logits = model(source, source_lengths, shift_right(target), target_lengths).logits
    return 100 * jnp.any((logits.argmax(-1) != target) & (target != PADDING), axis=1).mean()


wrong = {"encoder": [], "decoder": []}
for position in range(-4, 5):
    for part in wrong if position <= 0 else ["encoder"]:
        changed = nnx.clone(model)
        stack = changed.encoder if part == "encoder" else changed.decoder.decoder
        forget(stack.layers, [position])
        wrong[part].append(count_wrong(changed))

first = jnp.asarray([[names.index(word) for word in translations[0]]])
target_length = jnp.array([first.shape[1]])
outputs = model(ids[:1], lengths[:1], shift_right(first), target_length, weights=True)
alignment = outputs.cross_weights[0, 0].mean(axis=0)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
left.imshow(alignment, cmap="Blues", vmin=0, vmax=1)
left.set_xticks(range(8), [*ORDERS[0].split(), "end"], rotation=90)
left.set_yticks(range(first.shape[1]), translations[0])
left.set(title="cross-attention", xlabel="source", ylabel="translation")
for shift, (part, shares), colour in zip(
    (-0.2, 0.2), wrong.items(), ("#0072b2", "#d55e00"), strict=True
):
    right.bar(np.arange(-4, len(shares) - 4) + shift, shares, 0.4, color=colour, label=part)
right.set_xticks(range(-4, 5), ["≤ -4", *range(-3, 4), "≥ 4"])
right.set(title="without the vector of one relative position", ylabel="wrong sentences (%)")
right.set_xlabel("key before (-) / after (+) the query")
right.spines[["top", "right"]].set_visible(False)
right.legend(frameon=False)
plt.show()

# %% [markdown]
# **Take home:** `python -m experiments train parallel_text --data.manual-dir FOLDER` trains a translator on
# your own translations, `explore` shows all of its heads, and `report` draws all of its position vectors.
#
# **Next:** [Where do time and memory of attention go?](kernels.ipynb)
