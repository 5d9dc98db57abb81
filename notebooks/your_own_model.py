# %% [markdown]
# # How do I bring distance-aware attention and guides into my own Flax model?
#
# ![accuracy during training, with plain and with distance-aware attention](attachment:answer.png)
#
# **Answer.** Pass `attention_fn=as_attention_fn(DistanceAware(...))` to the attention layer that you
# have. For a guide, use a layer that also returns the received attention, and add a loss. Both
# together are about ten lines. On the toy task of this notebook, plain attention without positions
# cannot learn which number is nearest. Distance-aware attention can.

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
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from distattn_jax import plot
from distattn_jax.guiding import map_discrimination
from distattn_jax.modules import DistanceAware, MultiHeadAttention, as_attention_fn

# %% [markdown]
# ## A model of plain Flax
#
# Nothing in this class comes from `distattn_jax`. The attention function is an argument.


# %%
class Tagger(nnx.Module):
    """Predict a class for each token, with one attention layer."""

    def __init__(self, attention_fn=nnx.dot_product_attention, *, rngs):
        self.embed = nnx.Embed(16, 32, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(
            4, 32, attention_fn=attention_fn, decode=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.hidden = nnx.Linear(32, 64, rngs=rngs)
        self.out = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + self.attend(x))
        return self.out(jax.nn.relu(self.hidden(x)))


# %% [markdown]
# ## Three lines
#
# `DistanceAware` owns w and v of each head. NNX finds them inside of the model and trains them.

# %%
rngs = nnx.Rngs(0)
plain = Tagger(rngs=rngs)
aware = Tagger(as_attention_fn(DistanceAware(num_heads=4, rngs=rngs)), rngs=rngs)
print("w before training:", aware.attend.attention_fn.variant.weight[...])

# %% [markdown]
# ## A toy task: name the nearest number
#
# A row has letters and three numbers from 0 to 3. At each letter, the model must name the nearest
# number (the first of two equally near). Without positions this is impossible.


# %%
def make_batch(generator, size=32, length=24):
    """Return tokens (0 to 3 are numbers) and labels, both of shape (B, T)."""
    tokens = generator.integers(4, 16, (size, length))
    places = generator.permuted(np.tile(np.arange(length), (size, 1)), axis=1)
    where = np.sort(places[:, :3], axis=1)  # positions of the numbers
    values = generator.integers(0, 4, (size, 3))
    np.put_along_axis(tokens, where, values, axis=1)
    distance = np.abs(where[:, None, :] - np.arange(length)[None, :, None])  # (B, T, 3)
    return tokens, np.take_along_axis(values, distance.argmin(-1), axis=1)


def task_loss(model, tokens, labels, weight):
    """Return the loss and the accuracy of a batch."""
    logits = model(tokens)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, (logits.argmax(-1) == labels).mean()


adam = optax.adam(1e-2)


@nnx.jit(static_argnames="loss")
def step(model, optimizer, loss, *arguments):
    """Take one step and return the accuracy."""
    (_, accuracy), gradient = nnx.value_and_grad(loss, has_aux=True)(model, *arguments)
    optimizer.update(model, gradient)
    return accuracy


def train(model, loss=task_loss, weight=0.0, steps=120):
    """Train a model and return its accuracy at each step. `weight` is that of the guide."""
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
    generator = np.random.default_rng(0)
    return np.stack(
        [step(model, optimizer, loss, *make_batch(generator), weight) for _ in range(steps)]
    )


curves = {"plain attention": train(plain), "distance-aware": train(aware)}

# %% tags=["answer"]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for (name, curve), colour in zip(curves.items(), ("#222222", "#d55e00"), strict=True):
    axes.plot(curve, color=colour, label=name)
axes.set(xlabel="training step", ylabel="accuracy of the batch", ylim=(0, 1))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What the heads have learned
#
# The letters should look at near tokens: heads with w < 0 do.

# %%
variant = aware.attend.attention_fn.variant()
plot.coefficient_curves(variant.weight, variant.shape, max_distance=23)

# %% [markdown]
# ## A guide, in a few more lines
#
# A guide needs the attention that each key receives. `modules.MultiHeadAttention` takes the arguments
# of Flax's layer, and returns it on request. MDG (Wang et al. 2022) asks the heads to differ.


# %%
class GuidedTagger(Tagger):
    """Tagger that also returns the received attention."""

    def __init__(self, *, rngs):
        super().__init__(rngs=rngs)
        self.attend = MultiHeadAttention(4, 32, variant=DistanceAware(4, rngs=rngs), rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        attended = self.attend(x, received=True)
        x = self.norm(x + attended.values)
        return self.out(jax.nn.relu(self.hidden(x))), attended.received  # (B, T, C), (B, N, S)


def guided_loss(model, tokens, labels, weight):
    """Return the loss of the task plus that of the guide, and the accuracy."""
    logits, received = model(tokens)
    loss, accuracy = task_loss(lambda _: logits, tokens, labels, weight)
    lengths = jnp.full(len(tokens), tokens.shape[1])
    mdg = map_discrimination(received[:, None], lengths)  # (B, L, N, S) for L layers
    return loss + weight * mdg.mean(), accuracy


unguided, guided = GuidedTagger(rngs=nnx.Rngs(0)), GuidedTagger(rngs=nnx.Rngs(0))
without = train(unguided, guided_loss, weight=0.0)
with_mdg = train(guided, guided_loss, weight=0.3)
print(
    f"accuracy at the end: {without[-20:].mean():.1%} without, {with_mdg[-20:].mean():.1%} with MDG"
)

# %% [markdown]
# The picture shows how similar the heads are in what they look at: the cosine of the attention that
# the tokens receive. The guide makes most pairs of heads less alike.

# %%
tokens, _ = make_batch(np.random.default_rng(1))
figure, panels = plt.subplots(1, 2, figsize=(6, 2.8), layout="constrained")
for axes, model, title in zip(panels, (unguided, guided), ("no guide", "MDG"), strict=True):
    received = np.asarray(nnx.jit(model)(tokens)[1])
    unit = received / np.linalg.norm(received, axis=-1, keepdims=True)
    cosines = np.einsum("bns,bms->nm", unit, unit) / len(tokens)
    image = axes.imshow(cosines, vmin=0, vmax=1, cmap="Blues")
    for i in range(4):
        for j in range(4):
            dark = cosines[i, j] > 0.6
            axes.text(j, i, f"{cosines[i, j]:.2f}", ha="center", color="white" if dark else "black")
    axes.set(title=title, xlabel="head", ylabel="head")
    axes.set(xticks=range(4), xticklabels=range(1, 5), yticks=range(4), yticklabels=range(1, 5))
figure.colorbar(image, ax=panels, label="cosine of received attention")
plt.show()

# %% [markdown]
# **Take home:** `as_attention_fn` changes the attention of a model that you already have;
# `received=True` gives a guide what it needs.
#
# **Next:** [What do guides change in the heads of a model?](guiding.ipynb)
