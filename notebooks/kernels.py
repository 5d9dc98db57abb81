# %% [markdown]
# # Where do time and memory of attention go?
#
# ![memory of two implementations, and pairs of tokens with a score, against the length](attachment:answer.png)
#
# **Answer.** Both go into the map of all pairs of tokens. The equations as printed store this map, so that
# memory grows with the square of the length. The default implementation computes large maps in blocks
# of queries: its memory grows with the length. Time still grows with the square, unless pairs are left
# out. A local distance-aware head allows that: beyond some distance its scores are nearly 0, one sum of
# values replaces all far keys, and the number of scored pairs grows with the length alone.

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
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from distattn_jax.attention import DistanceAware, attention

HEADS, WIDTH = 4, 32
local_and_global = DistanceAware(jnp.array([-0.1, -0.1, 0.1, 0.1]), jnp.ones(4))


def make_inputs(length):
    """Return query, key and value of one example, shape (1, T, N, H)."""
    shape = (3, 1, length, HEADS, WIDTH)
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def measure(function, *arguments, repeats=3):
    """Return the shortest time of a call in milliseconds. The first call compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


# %% [markdown]
# ## Compile once
#
# `jax.jit` turns the call into one program. The first call pays for the compilation.


# %%
def call(query, key, value, variant, implementation=None):
    """Return the values of the attention."""
    return attention(query, key, value, variant, implementation=implementation).values


inputs = make_inputs(256)
compiled = jax.jit(call, static_argnames="implementation")
start = time.perf_counter()
jax.block_until_ready(compiled(*inputs, local_and_global))
first = 1000 * (time.perf_counter() - start)
later = measure(compiled, *inputs, local_and_global)
print(f"first call {first:.0f} ms, later calls {later:.1f} ms")

# %% [markdown]
# ## How far does a local head look?
#
# Its coefficient f falls with the distance, and the scores fall with it. From some distance on, all
# weights of a query are e⁰, up to rounding. Replace the far scores by 0, and compare the results.

# %%
coefficients = jax.vmap(DistanceAware.coefficients, in_axes=(0, None))
f = np.asarray(coefficients(local_and_global, jnp.arange(1024)))[0]  # of a local head
reach = int(np.argmax(f < 2**-8))  # 2^-8: numbers of bfloat16 have no finer steps around 1
print(f"f is below 2^-8 from a distance of {reach} tokens on")

query, key, value = (x[0, :, 0] for x in make_inputs(1024))  # one head, (T, H)
distance = np.abs(np.arange(1024)[:, None] - np.arange(1024)[None, :])
exact = jax.nn.relu(query @ key.T / WIDTH**0.5) * f[distance]
values = {
    name: jax.nn.softmax(scores) @ value
    for name, scores in (("exact", exact), ("far scores 0", jnp.where(distance < reach, exact, 0)))
}
difference = jnp.abs(values["exact"] - values["far scores 0"]).max()
print(
    f"largest difference of the results: {difference:.0e}; largest result: {values['exact'].max():.1f}"
)

# %% [markdown]
# ## Memory, and pairs with a score, against the length
#
# The compiler knows how much temporary memory a program needs, without running it. The dotted line is
# 256 MiB: the implementation `xla` computes larger maps in blocks of queries.

# %% tags=["answer"]
lengths = [256, 1024, 4096, 16384]
memory = {"reference": [], "xla": []}
for name, sizes in memory.items():
    for length in lengths:
        shape = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
        program = compiled.lower(shape, shape, shape, local_and_global, implementation=name)
        sizes.append(program.compile().memory_analysis().temp_size_in_bytes / 2**20)
all_pairs = np.square(lengths)
near_pairs = np.minimum(all_pairs, np.multiply(lengths, 2 * reach))

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
colours = "#222222", "#d55e00"
for (name, sizes), colour in zip(memory.items(), colours, strict=True):
    left.plot(lengths, sizes, "o-", color=colour, label=name)
left.axhline(256, color="#aaaaaa", linestyle=":")
left.set(title="temporary memory", ylabel="MiB")
for name, pairs, colour in (
    ("any head", all_pairs, "#222222"),
    ("local head", near_pairs, "#0072b2"),
):
    right.plot(lengths, pairs, "o-", color=colour, label=name)
right.set(title="pairs of tokens that need a score", ylabel="pairs of one head")
for axes in (left, right):
    axes.set(xscale="log", yscale="log", xlabel="length (tokens)")
    axes.set_xticks(lengths, lengths, rotation=45)
    axes.minorticks_off()
    axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Where the time goes
#
# The parts of distance-aware attention, one by one, for 1024 tokens. Fused kernels do all of them
# while a tile is in registers. Here each part reads and writes the memory.

# %%
query, key, value = (x[0].transpose(1, 0, 2) for x in make_inputs(1024))  # (N, T, H)
score = jax.jit(lambda q, k: jnp.einsum("nth,nsh->nts", q, k) / WIDTH**0.5)
scores = score(query, key)
f = jax.jit(coefficients)(local_and_global, distance)
weights = jax.jit(lambda s, f: jax.nn.softmax(jax.nn.relu(s) * f))(scores, f)
parts = {
    "scores q·k": (score, query, key),
    "coefficient f(w|i-j|)": (jax.jit(coefficients), local_and_global, distance),
    "ReLU, product": (jax.jit(lambda s, f: jax.nn.relu(s) * f), scores, f),
    "softmax": (jax.jit(jax.nn.softmax), scores),
    "weights times values": (
        jax.jit(lambda w, v: jnp.einsum("nts,nsh->nth", w, v)),
        weights,
        value,
    ),
}
spent = {name: measure(*part) for name, part in parts.items()}
figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.barh(list(spent), list(spent.values()), color="#0072b2")
axes.invert_yaxis()
axes.set(xlabel="ms on this CPU")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## What a GPU does with it
#
# Fused kernels work on tiles of the map: they compute a tile, use it and forget it, so that no map is
# stored. A tile without near pairs is left out. The picture shows the tiles of 128 x 128 pairs of a
# text with 2048 tokens: blue ones are computed, one sum of values replaces the white ones. The longer
# the text, the larger the white part. [Kernels](../docs/kernels.md) has the times measured on a GPU, for
# every variant, and explains the rest.

# %%
TILE, BLOCKS = 128, 16
blocks = np.arange(BLOCKS)
gap = np.maximum(np.abs(blocks[:, None] - blocks[None, :]) - 1, 0) * TILE + 1  # shortest distance
gap[blocks, blocks] = 0
figure, panels = plt.subplots(1, 3, figsize=(9, 3.1), layout="constrained")
for axes, w in zip(panels, (-0.1, -0.03, -0.01), strict=True):
    head = DistanceAware(jnp.array([w]), jnp.ones(1))
    f = np.asarray(coefficients(head, jnp.arange(TILE * BLOCKS)))[0]
    computed = f[gap] >= 2**-8
    axes.imshow(computed, cmap="Blues", vmin=0, vmax=1.4)
    axes.set_xticks(blocks - 0.5, [])
    axes.set_yticks(blocks - 0.5, [])
    axes.grid(color="white", linewidth=0.6)
    axes.tick_params(length=0)
    axes.set(title=f"w = {w}: {computed.mean():.0%} of the tiles", xlabel="keys", ylabel="queries")
plt.show()

# %% [markdown]
# **Take home:** let `implementation=None` choose. `python -m experiments bench` measures your device,
# and checks every case against the equations first.
#
# **Next:** [How is attention spread over many devices?](many_devices.ipynb)
