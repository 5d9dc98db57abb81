# %% [markdown]
# # What do five kinds of attention do to one sentence?
#
# *the service was awful but our friends said the food was great*: which opinion is about the food? The
# nearest one. All five kinds of attention read the same words. They differ in what they know about
# positions.
#
# ![attention maps of one sentence, one for each kind of attention](attachment:answer.png)
#
# **Answer.** The dot product sees words alone: "food" gives "awful" and "great" the same weight, and equal
# words find each other wherever they stand. The other four also see the distance, and choose "great".
# A distance-aware head fades with the distance, before and after the word. The heads of Shaw et al.,
# Transformer-XL and TENER can point at a relative position: here two words after.

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
# Each word has a random vector, so that equal words are similar. The queries of "service" and "food" also
# ask for an opinion, and the keys of "awful" and "great" answer. All queries have a common part, the
# vector `common`. A head can use it to look at a position whatever the word.

# %%
SENTENCE = "the service was awful but our friends said the food was great".split()
TOPICS, OPINIONS = ("service", "food"), ("awful", "great")
WIDTH = 64

words = sorted(set(SENTENCE))
table = 0.6 * jax.random.normal(jax.random.key(0), (len(words), WIDTH)).at[:, :2].set(0)
common = jnp.zeros(WIDTH).at[0].set(6.0)
opinion = jnp.zeros(WIDTH).at[1].set(5.0)


def attend(variant, sentence=SENTENCE):
    """Return the attention map (T, S) of one head."""
    vectors = jnp.stack([table[words.index(word)] for word in sentence])
    asks = jnp.array([word in TOPICS for word in sentence])[:, None]
    answers = jnp.array([word in OPINIONS for word in sentence])[:, None]
    query, key = vectors + common + asks * opinion, vectors + answers * opinion
    query, key = query[None, :, None], key[None, :, None]  # (B, T, N, H)
    return attention(query, key, key, variant, scale=WIDTH**-0.5, weights=True).weights[0, 0]


# %% [markdown]
# ## Five heads, set by hand
#
# A trained model would learn these numbers. Setting them by hand shows what each kind can express.
#
# - `DistanceAware`: w = -0.25 shrinks the scores of distant words.
# - `RelativePosition` (Shaw et al.) has one vector for each relative position from -4 to 4. The vector
#   of 2, two words after, has a large product with `common`.
# - `TransformerXL` and `Adapted` (TENER) compare the query with a sinusoid of the distance. A sum of
#   cosines cos(f (d - d₀)) is largest at d = d₀.

# %%
zeros = jnp.zeros((1, WIDTH))
is_fast = jnp.arange(WIDTH) % (WIDTH // 2) < 8  # Slow waves hardly differ between neighbours.
waves = is_fast * sinusoid(jnp.array([-2]), WIDTH, jnp.float32)  # i - j = -2: two words after
variants = {
    "dot product": DotProduct(),
    "distance-aware": DistanceAware(jnp.array([-0.25]), jnp.array([1.0])),
    "relative positions (Shaw)": RelativePosition(
        keys=jnp.zeros((1, 9, WIDTH)).at[0, 6, 0].set(3.0), values=None
    ),
    "Transformer-XL": TransformerXL(
        projection=jnp.zeros((1, WIDTH, WIDTH)).at[0, :, 0].set(0.5 * waves[0]),
        content_bias=zeros,
        position_bias=zeros,
    ),
    "TENER": Adapted(content_bias=zeros, position_bias=4 * waves - common),
}
maps = {name: attend(variant) for name, variant in variants.items()}

# %% tags=["answer"]
plot.attention_maps(maps, SENTENCE, columns=5, max_weight=0.6)

# %% [markdown]
# ## Swap the opinions
#
# *the service was great but our friends said the food was awful* has the same words, and another meaning.
# What does "food" attend to? The dot product cannot tell the two sentences apart. The other four follow
# the word that is now near.

# %%
swap = {"awful": "great", "great": "awful"}
sentences = {"… the food was great": SENTENCE}
sentences["… the food was awful"] = [swap.get(word, word) for word in SENTENCE]
figure, panels = plt.subplots(1, 5, figsize=(12, 2.8), sharey=True, layout="constrained")
for axes, (name, variant) in zip(panels, variants.items(), strict=True):
    for shift, (end, sentence) in zip((-0.2, 0.2), sentences.items(), strict=True):
        weights = np.asarray(attend(variant, sentence))[sentence.index("food")]
        shown = [weights[sentence.index(word)] for word in OPINIONS]
        colour = "#999999" if shift < 0 else "#d55e00"
        axes.bar(np.arange(2) + shift, shown, 0.38, color=colour, label=end)
    axes.set_title(name, fontsize=9)
    axes.set_xticks(range(2), OPINIONS)
panels[0].set_ylabel('weight from "food"')
handles = panels[0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## Look around
#
# The same five maps as an interactive page. Point at a word to see what it attends to. `lines` shows
# several heads in colours. The page is a part of the notebook: it also works if the notebook is exported
# as HTML.

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
#
# **Next:** [What do w and v do to a head?](what_a_head_sees.ipynb)
