# %% [markdown]
# # Where do time and memory of attention go?
#
# ![memory and time against the length](attachment:answer.png)
#
# **Answer.** The equations as printed store maps of all pairs, so that memory grows with the square of
# the length. The default implementation computes large maps in blocks of queries: its memory grows
# with the length. Time still grows with the square. On a Hopper GPU, fused kernels skip the tiles in
# which a distance-aware head is constant, and a local head costs time linear in the length.

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
# ## Memory and time against the length
#
# The compiler knows how much temporary memory a program needs, without running it. Times are measured
# up to 1024 tokens.

# %% tags=["answer"]
lengths = [256, 1024, 4096, 16384]
memory = {"reference": [], "xla": []}
for name, sizes in memory.items():
    for length in lengths:
        shape = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
        program = compiled.lower(shape, shape, shape, local_and_global, implementation=name)
        sizes.append(program.compile().memory_analysis().temp_size_in_bytes / 2**20)
short = [128, 256, 512, 1024]
times = {
    name: [measure(compiled, *make_inputs(n), local_and_global, name) for n in short]
    for name in memory
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
for (name, sizes), colour in zip(memory.items(), ("#222222", "#d55e00"), strict=True):
    left.plot(lengths, sizes, "o-", color=colour, label=name)
    right.plot(short, times[name], "o-", color=colour, label=name)
left.axhline(256, color="#aaaaaa", linestyle=":")
left.set(title="temporary memory", ylabel="MiB")
right.set(title="time of a forward pass on this CPU", ylabel="ms")
for axes, ticks in ((left, lengths), (right, short)):
    axes.set(xscale="log", yscale="log", xlabel="length (tokens)")
    axes.set_xticks(ticks, ticks, rotation=45)
    axes.minorticks_off()
    axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The dotted line is 256 MiB: the implementation `xla` computes larger maps in blocks of queries.
#
# ## Where the time goes
#
# The parts of distance-aware attention, one by one, for 1024 tokens. Fused kernels do all of them
# while a tile is in registers. Here each part reads and writes the memory.

# %%
query, key, value = (x[0].transpose(1, 0, 2) for x in make_inputs(1024))  # (N, T, H)
distance = jnp.abs(jnp.arange(1024)[:, None] - jnp.arange(1024)[None, :])
coefficients = jax.vmap(DistanceAware.coefficients, in_axes=(0, None))
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
# Forward and backward on one H200, bfloat16, as a multiple of cuDNN's plain attention (the table in
# docs/kernels.md). Half of the heads are local, half global. The longer the text, the more tiles are
# constant.

# %%
shapes = ["bert\n256", "paper\n512", "mid\n2048", "wide\n4096", "long\n8192"]
ratios = {
    "dot product": [0.61, 0.65, 0.94, 1.07, 0.98],
    "distance-aware": [0.81, 0.85, 0.83, 0.70, 0.61],
}
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for shift, ((name, ratio), colour) in enumerate(
    zip(ratios.items(), ("#999999", "#d55e00"), strict=True)
):
    axes.bar(np.arange(5) + 0.4 * shift, ratio, 0.38, color=colour, label=name)
axes.axhline(1, color="#222222", linewidth=0.8)
axes.set_xticks(np.arange(5) + 0.2, shapes)
axes.set(ylabel="time / cuDNN")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# **Take home:** let `implementation=None` choose. `python -m experiments bench` measures your device,
# and checks every case against the equations first.
