# %% [markdown]
# # What do five kinds of attention do to one sentence?
#
# All five read the same words. They differ in what they know about positions.
#
# ![attention maps of one sentence, one for each kind of attention](attachment:answer.png)
#
# **Answer.** The dot product sees words alone: equal words find each other, wherever they stand. The
# other four also see the distance. A distance-aware head fades with the distance. The heads of Shaw
# et al., Transformer-XL and TENER can point at a relative position: here the word before, two words
# before, and two words after.

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

from distattn_jax import plot
from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
    sinusoid,
)

# %% [markdown]
# ## A sentence as vectors
#
# Each word has a random vector, so that only equal words are similar. Queries also have a common
# part, the vector `common`. A head can use it to look at a position whatever the word.

# %%
SENTENCE = "the old man and the old dog saw the sea".split()
WIDTH = 64

words = sorted(set(SENTENCE))
table = 0.6 * jax.random.normal(jax.random.key(0), (len(words), WIDTH)).at[:, 0].set(0)
vectors = jnp.stack([table[words.index(word)] for word in SENTENCE])[None, :, None, :]  # (B T N H)
common = jnp.zeros(WIDTH).at[0].set(6.0)


def attend(variant, vectors=vectors):
    """Return the attention map (T, S) of one head."""
    query = vectors + common
    attended = attention(query, vectors, vectors, variant, scale=WIDTH**-0.5, weights=True)
    return attended.weights[0, 0]


# %% [markdown]
# ## Five heads, set by hand
#
# A trained model would learn these numbers. Setting them by hand shows what each kind can express.
#
# - `DistanceAware`: w = -0.25 shrinks the scores of distant words.
# - `RelativePosition` (Shaw et al.) has one vector for each relative position from -2 to 2. The vector
#   of -1, the word before, has a large product with `common`.
# - `TransformerXL` and `Adapted` (TENER) compare the query with a sinusoid of the distance. A sum of
#   cosines cos(f (d - d₀)) is largest at d = d₀.

# %%
zeros = jnp.zeros((1, WIDTH))
is_fast = jnp.arange(WIDTH) % (WIDTH // 2) < 8  # Slow waves hardly differ between neighbours.
waves = is_fast * sinusoid(jnp.array([2, -2]), WIDTH, jnp.float32)  # two words before, two after
variants = {
    "dot product": DotProduct(),
    "distance-aware": DistanceAware(jnp.array([-0.25]), jnp.array([1.0])),
    "relative positions (Shaw)": RelativePosition(
        keys=jnp.zeros((1, 5, WIDTH)).at[0, 1, 0].set(6.0), values=None
    ),
    "Transformer-XL": TransformerXL(
        projection=jnp.zeros((1, WIDTH, WIDTH)).at[0, :, 0].set(2 * waves[0]),
        content_bias=zeros,
        position_bias=zeros,
    ),
    "TENER": Adapted(content_bias=zeros, position_bias=12 * waves[1:] - common),
}
maps = {name: attend(variant) for name, variant in variants.items()}

# %% tags=["answer"]
plot.attention_maps(maps, SENTENCE, columns=5, max_weight=0.6)

# %% [markdown]
# ## Swap two words
#
# "dog" and "man" change places: the old dog and the old man saw the sea. The dot product gives every
# word the same weights as before: it cannot tell the two sentences apart. The distance-aware weights
# hardly change, because "dog" occurs only once. The weights of the other three move to the words around
# its new place.


# %%
def attend_reordered(order):
    """Return the weights that "dog" gives to each word, by the old order of the words."""
    query = order.index(SENTENCE.index("dog"))
    back = np.argsort(order)
    return {
        name: np.asarray(attend(variant, vectors[:, jnp.array(order)]))[query, back]
        for name, variant in variants.items()
    }


same = list(range(len(SENTENCE)))
swapped = [0, 1, 6, 3, 4, 5, 2, 7, 8, 9]
figure, panels = plt.subplots(1, 5, figsize=(12, 2.6), sharey=True, layout="constrained")
for axes, name in zip(panels, variants, strict=True):
    for shift, order in enumerate((same, swapped)):
        weights = attend_reordered(order)[name]
        axes.bar(np.arange(10) + 0.4 * shift, weights, 0.4, color=("#999999", "#d55e00")[shift])
    axes.set_title(name, fontsize=9)
    axes.set_xticks(np.arange(10) + 0.2, SENTENCE, rotation=90, fontsize=8)
panels[0].set_ylabel('weight from "dog"')
figure.legend(
    ["as it was", '"dog" and "man" swapped'], loc="outside lower center", ncols=2, frameon=False
)
plt.show()

# %% [markdown]
# ## Look around
#
# The same five maps as an interactive page. Point at a word to see what it attends to.

# %%
page = plot.explore(
    jnp.stack(list(maps.values()))[None],
    SENTENCE,
    title="five kinds of attention",
    caption="Heads 1 to 5: " + ", ".join(variants) + ".",
)
page

# %% [markdown]
# **Take home:** the variant decides what a head can know about positions. Change one argument,
# `attention(query, key, value, variant)`, to change it.
