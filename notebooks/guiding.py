# %% [markdown]
# # What do guides change in the heads of a model?
#
# ![received attention of eight heads, without a guide, with MDG and with PDG](attachment:answer.png)
#
# **Answer.** Without a guide, heads spread their attention and share words. Guides are losses on the
# *received attention*. MDG (map discrimination) asks heads to differ. PDG (pattern decorrelation) asks
# words to receive attention from different heads. With strong guides, the heads of a layer attend to
# different words, for nearly every query. The accuracy does not suffer here. One short training proves no
# gain, and on the real data sets that we tried the guides gave none.

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
import random

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from distattn_jax import plot
from distattn_jax.datasets.nearest import LABELS, SPLITS, make_sentence
from distattn_jax.guiding import map_discrimination, pattern_decorrelation
from distattn_jax.models import Sizes, TextClassifier

# %% [markdown]
# ## Data: which opinion is nearest to "service"?
#
# Only sentences of at most 16 words are used, so that the training is short.

# %%
LONGEST = 16
source = random.Random(0)
examples = [make_sentence(source, SPLITS["train"]) for _ in range(12000)]
examples = [(text, label) for text, label in examples if len(text.split()) <= LONGEST]
words = sorted({word for text, _ in examples for word in text.split()})


def encode(texts):
    """Return token ids, padded, and the number of words of each text."""
    tokens = np.zeros((len(texts), LONGEST), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text.split())] = [words.index(word) + 3 for word in text.split()]
    return tokens, (tokens > 0).sum(axis=1)


tokens, lengths = map(jnp.asarray, encode([text for text, _ in examples]))
labels = jnp.array([LABELS.index(label) for _, label in examples])

# %% [markdown]
# ## Three trainings
#
# The model has two layers of four heads. The weights of the two guides are an argument of the training,
# so that one compiled program trains all three models.

# %%
sizes = Sizes(heads=4, head_features=8, features=32, layers=2, hidden_features=64)
sizes = Sizes(**{**vars(sizes), "embedding_features": 32, "pooling_features": 32})
adam = optax.adam(5e-3)


@nnx.jit
def take_steps(model, optimizer, rows, weights):
    """Take a step for each row of indices. Return the accuracy and the losses of both guides."""

    def loss(model, i):
        outputs = model(tokens[i], lengths[i], received=True)
        task = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, labels[i]).mean()
        mdg = map_discrimination(outputs.received, lengths[i]).mean()
        pdg = pattern_decorrelation(outputs.received, lengths[i]).mean()
        accuracy = (outputs.logits.argmax(-1) == labels[i]).mean()
        return task + weights[0] * mdg + weights[1] * pdg, jnp.stack([accuracy, mdg, pdg])

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def step(carry, i):
        model, optimizer = carry
        (_, measures), gradient = nnx.value_and_grad(loss, has_aux=True)(model, i)
        optimizer.update(model, gradient)
        return carry, measures

    return step((model, optimizer), rows)[1]


def train(weights, steps=150):
    """Return a trained model and its measures at each step."""
    model = TextClassifier(
        len(words) + 3, len(LABELS), method="vanilla", sizes=sizes, rngs=nnx.Rngs(0)
    )
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
    rows = np.random.default_rng(0).integers(0, len(examples), (steps, 48))
    return model, take_steps(model, optimizer, rows, jnp.array(weights))


guides = {"no guide": (0.0, 0.0), "MDG": (0.5, 0.0), "PDG": (0.0, 0.5)}
trained = {name: train(weights) for name, weights in guides.items()}
for name, (_, measures) in trained.items():
    accuracy, mdg, pdg = measures[-20:].mean(axis=0)
    print(f"{name:>8}: accuracy {accuracy:.1%}, MDG loss {mdg:.2f}, PDG loss {pdg:.2f}")

# %% [markdown]
# ## Heads as points
#
# A head is described by the attention that the words of 32 sentences receive from it. Two principal
# components draw the eight heads of all models in one plane.

# %%
sample = slice(0, 32)
forward = nnx.jit(TextClassifier.__call__, static_argnames=("received", "weights"))
outputs = {
    name: forward(model, tokens[sample], lengths[sample], received=True, weights=True)
    for name, (model, _) in trained.items()
}
heads = {}
for name, output in outputs.items():
    received = np.asarray(output.received)  # (B, L, N, S)
    received = received / np.linalg.norm(received, axis=-1, keepdims=True)
    heads[name] = received.transpose(1, 2, 0, 3).reshape(8, -1)
points = np.concatenate(list(heads.values()))
points = points - points.mean(axis=0)
_, _, components = np.linalg.svd(points, full_matrices=False)
plane = (points @ components[:2].T).reshape(3, 8, 2)

figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.2), sharex=True, sharey=True)
for axes, name, places in zip(panels, heads, plane, strict=True):
    for layer, colour in enumerate(("#0072b2", "#d55e00")):
        axes.scatter(*places[4 * layer : 4 * layer + 4].T, color=colour, label=f"layer {layer + 1}")
    axes.set(title=name, xlabel="first component")
panels[0].set_ylabel("second component")
panels[0].legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Received attention of one sentence
#
# A row is a head, a column a word: row 2.1 is layer 2, head 1. Equal rows mean equal heads.

# %% tags=["answer"]
row = 3
text = examples[row][0].split()
figure, panels = plt.subplots(3, 1, figsize=(8, 6.4), sharex=True, layout="constrained")
for axes, (name, output) in zip(panels, outputs.items(), strict=True):
    received = np.asarray(output.received[row, ..., : len(text)]).reshape(8, -1)
    image = axes.imshow(received, cmap="Blues", vmin=0, aspect="auto")
    axes.set(title=name, ylabel="layer.head")
    axes.set_yticks(range(8), [f"{1 + i // 4}.{1 + i % 4}" for i in range(8)], fontsize=7)
    figure.colorbar(image, ax=axes, label="received")
panels[-1].set_xticks(range(len(text)), text, rotation=90)
plt.show()

# %% [markdown]
# ## Maps of the first layer

# %%
plot.attention_maps(
    {
        f"{name}, head {i + 1}": output.weights[row, 0, i, : len(text), : len(text)]
        for name, output in outputs.items()
        for i in range(4)
    },
    text,
    columns=4,
    max_weight=0.5,
)

# %% [markdown]
# **Take home:** guides change where heads look, without a stored map. Whether this helps is a question
# for each task.
#
# **Next:** [What does a translator learn about word order?](translate.ipynb)
