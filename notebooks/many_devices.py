# %% [markdown]
# # How is attention spread over many devices?
#
# ![which device holds which part of the queries, for three meshes](attachment:answer.png)
#
# **Answer.** Examples of a batch and heads never need each other inside of attention. So a mesh has
# the axis `data` for examples and the axis `model` for heads, and attention itself runs without any
# communication. The output projection adds the parts of all heads: one all-reduce over `model`.
# The length can be split, too, over an axis `sequence`: keys and values then travel from device to
# device, and the parts are merged by their logsumexp.

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

# %% [markdown]
# Eight virtual devices on one CPU behave like eight real ones, but share the cores.

# %%
# %matplotlib inline
import re

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from distattn_jax import modules, sharding
from distattn_jax.attention import DistanceAware, ShardedSequence, attention

print(jax.device_count(), "devices")

# %% [markdown]
# ## Three meshes
#
# Queries have shape (B, T, N, H): here 8 examples of 64 tokens, and 8 heads of width 16. A cell of the
# picture is one head of one example. The number is the device that holds it.

# %% tags=["answer"]
B, T, N, H = 8, 64, 8, 16
meshes = {f"{8 // k} x {k}": sharding.make_mesh(data=8 // k, model=k) for k in (1, 2, 8)}


def find_devices(mesh):
    """Return the device of each example and head, shape (B, N)."""
    found = np.zeros((B, N), int)
    split = NamedSharding(mesh, P("data", None, "model", None))
    for device, index in split.devices_indices_map((B, T, N, H)).items():
        found[index[0], index[2]] = device.id
    return found


figure, panels = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for axes, (name, mesh) in zip(panels, meshes.items(), strict=True):
    devices = find_devices(mesh)
    axes.imshow(devices, cmap="Set2", vmin=0, vmax=7)
    for i in range(B):
        for j in range(N):
            axes.text(j, i, devices[i, j], ha="center", va="center", fontsize=8)
    axes.set_xticks(range(N), range(1, N + 1))
    axes.set_yticks(range(B), range(1, B + 1))
    axes.set(title=f"data x model = {name}", xlabel="head", ylabel="example")
plt.show()

# %% [markdown]
# ## The same numbers everywhere
#
# `attention` follows the sharding of its inputs. w and v of a head live where the head lives.

# %%
generator = np.random.default_rng(0)
qkv = generator.standard_normal((3, B, T, N, H)).astype(np.float32)
heads = DistanceAware(jnp.linspace(-0.3, 0.3, N), jnp.zeros(N))
alone = np.asarray(jax.jit(attention)(*qkv, heads).values)


def count_collectives(text):
    """Return how often a compiled program communicates, by kind."""
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute")
    return {kind: n for kind in kinds if (n := len(re.findall(rf" {kind}(?:-start)?\(", text)))}


for name, mesh in meshes.items():
    split = NamedSharding(mesh, P("data", None, "model", None))
    parameters = jax.device_put(heads, NamedSharding(mesh, P("model")))
    call = jax.jit(attention).lower(*jax.device_put(list(qkv), split), parameters).compile()
    values = call(*jax.device_put(list(qkv), split), parameters).values
    difference = np.abs(np.asarray(values) - alone).max()
    print(
        f"{name}: largest difference {difference:.0e},",
        count_collectives(call.as_text()) or "no communication",
    )

# %% [markdown]
# ## A whole layer
#
# `sharding.Layout` splits the projections of a layer by heads. Queries, keys and values need no
# communication. The output projection sums over heads, so the devices of one row of the mesh add up
# their parts.

# %%
rngs = nnx.Rngs(0)
layer = modules.MultiHeadAttention(N, 64, variant=modules.DistanceAware(N, rngs=rngs), rngs=rngs)
graph, state = nnx.split({"attention": layer})
state = nnx.to_pure_dict(state)
x = generator.standard_normal((B, T, 64)).astype(np.float32)


def apply(state, x):
    """Apply the layer."""
    return nnx.merge(graph, state)["attention"](x)


for name, mesh in meshes.items():
    parts = sharding.shardings(state, mesh, sharding.Layout())
    inputs = jax.device_put(state, parts), jax.device_put(x, NamedSharding(mesh, P("data")))
    compiled = jax.jit(apply, out_shardings=inputs[1].sharding).lower(*inputs).compile()
    per_device = compiled.memory_analysis().argument_size_in_bytes / 1024
    print(
        f"{name}: {per_device:.0f} KiB of inputs per device,",
        count_collectives(compiled.as_text()) or "no communication",
    )

# %% [markdown]
# ## Split the length
#
# For a very long text, each device can hold a part of the keys. `query_offset` tells each part where
# its keys stand, and `logsumexp` says how much weight each part has.

# %%
query, key, value = qkv[:, :1]
pieces = []
for start in range(0, T, T // 8):
    keys = slice(start, start + T // 8)
    pieces.append(
        attention(query, key[:, keys], value[:, keys], heads, query_offset=-start, logsumexp=True)
    )
totals = jnp.stack([piece.logsumexp for piece in pieces])  # (8, B, N, T)
shares = jax.nn.softmax(totals, axis=0)
merged = sum(
    share.transpose(0, 2, 1)[..., None] * piece.values
    for share, piece in zip(shares, pieces, strict=True)
)
print(f"largest difference: {np.abs(np.asarray(merged) - alone[:1]).max():.0e}")

figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
image = axes.imshow(shares[:, 0, 0], aspect="auto", cmap="Blues", vmin=0)
axes.set(
    xlabel="query position", ylabel="part of the keys", title="weight of each part: local head"
)
figure.colorbar(image, ax=axes)
plt.show()

# %% [markdown]
# `attention` does this itself if the sequence is sharded over devices. On a mesh with Auto axes, the
# axis is named `sequence`. In each step of a ring, a device attends to the keys that it holds, and
# sends them to the next device (a collective-permute). Texts as short as this one would be gathered,
# so the ring is named here.

# %%
for data, sequence in ((1, 8), (2, 4)):
    mesh = sharding.make_mesh(data, 8 // (data * sequence), sequence=sequence)
    split = jax.device_put(list(qkv), NamedSharding(mesh, P("data", "sequence", "model")))
    ring = ShardedSequence(strategy="ring")
    call = jax.jit(lambda *x, ring=ring: attention(*x, heads, sequence=ring).values)
    compiled = call.lower(*split).compile()
    difference = np.abs(np.asarray(compiled(*split)) - alone).max()
    print(
        f"data x sequence = {data} x {sequence}: largest difference {difference:.0e},",
        count_collectives(compiled.as_text()),
    )

# %% [markdown]
# **Take home:** shard the batch over `data`, heads over `model`, and long texts over `sequence`. The
# program stays the same, from one device to many: `--mesh.data 2 --mesh.sequence 2 --mesh.model 2` in
# training.
#
# **Next:** this was the last notebook. [Training](../docs/training.md) has recipes and commands, and
# [Kernels](../docs/kernels.md) what each variant costs.
