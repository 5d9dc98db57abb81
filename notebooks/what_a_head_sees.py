# %% [markdown]
# # What do w and v do to a head?
#
# A distance-aware head multiplies what query and key agree on, ReLU(q·k/√H), by a coefficient
# f(wR; v) of their distance R = |i - j|, before the softmax.
#
# ![coefficients for several w and v, as curves and as maps](attachment:answer.png)
#
# **Answer.** The sign of w says whether the head favours near keys (w < 0) or far ones (w > 0), and
# its size says over how many tokens the coefficient changes. v says how strongly: the coefficient of
# a global head (w > 0) rises to 1 + eᵛ, and that of a local head (w < 0) falls sooner the larger v is.

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

# %% tags=["answer", "hide-cell"]
# %matplotlib inline
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm, TwoSlopeNorm

from distattn_jax.attention import DistanceAware, DotProduct, attention, learnable_sigmoid

plt.rcParams.update({"figure.dpi": 80, "axes.spines.top": False, "axes.spines.right": False})
coefficients = jax.vmap(DistanceAware.coefficients, in_axes=(0, None))  # of every head
figure = plt.figure(figsize=(13.5, 6.4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.05))

by_weight, by_shape = left.subplots(2, 1, sharex=True)
distance = jnp.linspace(0, 12, 241)
for w, shade in ((1, 0.8), (0.3, 0.6), (0.1, 0.4), (-0.1, 0.4), (-0.3, 0.6), (-1, 0.8)):
    colour = plt.get_cmap("Oranges" if w > 0 else "Purples")(shade)
    curve = learnable_sigmoid(w * distance, 1.0)
    by_weight.plot(distance, curve, color=colour, label=f"$w = {w:+}$")
styles = {1: "-", -1: "--", -4: ":"}
for w, v in ((1, 1), (1, -1), (1, -4), (-1, -4), (-1, -1), (-1, 1)):
    colour = plt.get_cmap("Oranges" if w > 0 else "Purples")(0.8)
    curve = learnable_sigmoid(w * distance, v)
    label = f"$w = {w:+}$, $v = {v:+}$"
    by_shape.plot(distance, curve, styles[v], color=colour, label=label)
by_weight.set(title="w: which way, and how fast ($v = +1$)", ylabel="coefficient f(wR; v)")
by_shape.set(title="v: how high, and how soon ($w = ±1$)", ylabel="coefficient f(wR; v)")
by_shape.set_xlabel("distance R (tokens)")
for axes in (by_weight, by_shape):
    axes.axhline(1, color="grey", linewidth=0.8, zorder=0)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)

heads = DistanceAware(weight=jnp.array([1.0, -1, 1, -1]), shape=jnp.array([-1.0, -1, 1, 1]))
relative_positions = jnp.arange(10)[:, None] - jnp.arange(10)[None, :]
matrices = coefficients(heads, relative_positions)
norm = TwoSlopeNorm(vmin=0, vcenter=1, vmax=float(matrices.max()))
panels = right.subplots(2, 2, sharex=True, sharey=True)
for axes, w, v, matrix in zip(panels.flat, heads.weight, heads.shape, matrices, strict=True):
    image = axes.imshow(matrix, cmap="PuOr_r", norm=norm)
    axes.set_title(f"head with $w = {w:+.0f}$, $v = {v:+.0f}$")
    axes.set(xlabel="key position j", ylabel="query position i")
    axes.label_outer()
right.colorbar(image, ax=panels, label="coefficient (1 leaves a score as it is)")
plt.show()


# %% [markdown]
# ## Try it
#
# Move w and v. The curve is the coefficient, and the strip below shows how much each key counts for
# the query in the middle.

# %% tags=["hide-input"]
from IPython.display import HTML

HTML("""
<div class="slider" style="max-width:640px;font-family:sans-serif">
  <label>w <input type="range" min="-1" max="1" step="0.05" value="-0.3"> <output></output></label><br>
  <label>v <input type="range" min="-4" max="4" step="0.25" value="1"> <output></output></label>
  <svg viewBox="0 0 640 260" style="width:100%;background:#fff;color:#222"></svg>
</div>
<script>
for (const box of document.querySelectorAll("div.slider:not([data-ready])")) {
  box.dataset.ready = "yes";
  const inputs = box.querySelectorAll("input"), outputs = box.querySelectorAll("output");
  const f = (x, v) => (1 + Math.exp(v)) / (1 + Math.exp(v - x));
  const draw = () => {
    const [w, v] = Array.from(inputs, (input) => Number(input.value));
    outputs[0].textContent = w.toFixed(2);
    outputs[1].textContent = v.toFixed(2);
    const top = w > 0 ? 1 + Math.exp(v) : 1.2, y = (c) => 190 - 175 * c / top;
    let svg = `<line x1="40" x2="620" y1="${y(1)}" y2="${y(1)}" stroke="#aaa" stroke-dasharray="4"/>`;
    svg += `<text x="36" y="${y(1) + 4}" text-anchor="end" font-size="13">1</text>`;
    svg += `<text x="620" y="14" text-anchor="end" font-size="13">f(20w) = ${f(20 * w, v).toPrecision(3)}</text>`;
    const points = [];
    for (let r = 0; r <= 20; r += 0.1) points.push(`${40 + 29 * r},${y(f(w * r, v))}`);
    const colour = w < 0 ? "#0072b2" : "#d55e00";
    svg += `<polyline points="${points.join(" ")}" fill="none" stroke="${colour}" stroke-width="3"/>`;
    svg += `<line x1="40" x2="620" y1="190" y2="190" stroke="#222"/>`;
    for (const r of [0, 5, 10, 15, 20])
      svg += `<text x="${40 + 29 * r}" y="206" text-anchor="middle" font-size="13">${r}</text>`;
    for (let j = -10; j <= 10; j++) {
      const shade = f(w * Math.abs(j), v) / top;
      svg += `<rect x="${320 + 27 * j - 13}" y="222" width="25" height="25" fill="${colour}"
        fill-opacity="${shade}" stroke="#ccc"><title>${f(w * Math.abs(j), v).toFixed(3)}</title></rect>`;
    }
    box.querySelector("svg").innerHTML = svg;
  };
  inputs.forEach((input) => input.addEventListener("input", draw));
  draw();
}
</script>
""")

# %% [markdown]
# ## Two sides, and a bias
#
# `TwoSided` extends distance-aware attention: keys before and after the query have their own w and v,
# and a bias g of the distance is added to the scores. g is a constant c, except for the query's own key,
# and the decay of KERPLE, -r₁ log(1 + r₂R). Move the parameters of both sides. The strip shows the
# attention of the query in the middle, if all 41 keys agree with it alike: ReLU(q·k/√H) = 2.

# %% tags=["hide-input"]
HTML("""
<div class="sides" style="max-width:640px;font-family:sans-serif">
  <table><tbody></tbody></table>
  <svg viewBox="0 0 640 330" style="width:100%;background:#fff;color:#222"></svg>
</div>
<script>
for (const box of document.querySelectorAll("div.sides:not([data-ready])")) {
  box.dataset.ready = "yes";
  // Name, lowest value, highest value, and the values before and after the query at the start.
  const parameters = [["w", -1, 1, -0.3, 0.1], ["v", -4, 4, 1, 0], ["c", -3, 3, 0, -1],
    ["r₁", 0.01, 4, 0.01, 1.5], ["r₂", 0.01, 2, 0.01, 0.5]];
  const slider = (low, high, value) => `<td><input type="range" min="${low}" max="${high}" step="any"
    value="${value}"></td><td style="min-width:3em"><output></output></td>`;
  box.querySelector("tbody").innerHTML = `<tr><th></th><th colspan="2">keys before</th><th colspan="2">
    keys after</th></tr>` + parameters.map(([name, low, high, before, after]) => `<tr><th>${name}</th>
    ${slider(low, high, before)}${slider(low, high, after)}</tr>`).join("");
  const inputs = [...box.querySelectorAll("input")], outputs = box.querySelectorAll("output");
  const numbers = (j) => inputs.filter((_, i) => i % 2 === (j > 0 ? 1 : 0)).map((x) => Number(x.value));
  const f = (j) => {
    const [w, v] = numbers(j);
    return (1 + Math.exp(v)) / (1 + Math.exp(v - w * Math.abs(j)));
  };
  const g = (j) => {
    const [, , c, r1, r2] = numbers(j);
    return j === 0 ? 0 : c - r1 * Math.log(1 + r2 * Math.abs(j));
  };
  const keys = Array.from({ length: 41 }, (_, i) => i - 20), x = (j) => 330 + 14.5 * j;
  const panel = (top, height, name, values, baseline) => {
    const low = Math.min(0, ...values), high = Math.max(baseline + 0.2, ...values);
    const y = (value) => top + height * (high - value) / (high - low);
    const label = (value) => `<text x="34" y="${y(value) + 4}" text-anchor="end" font-size="12">
      ${value.toFixed(1)}</text>`;
    const line = (side, colour) => `<polyline fill="none" stroke="${colour}" stroke-width="3"
      points="${keys.map((j, i) => [x(j), y(values[i]), j]).filter(side)
        .map(([a, b]) => `${a},${b}`).join(" ")}"/>`;
    return `<line x1="40" x2="620" y1="${y(baseline)}" y2="${y(baseline)}" stroke="#aaa"
      stroke-dasharray="4"/>${[Math.min(...values), Math.max(...values)].filter(
        (value) => Math.abs(y(value) - y(baseline)) > 12).map(label).join("")}${label(baseline)}
      <text x="620" y="${top - 4}" text-anchor="end" font-size="13">${name}</text>
      ${line(([, , j]) => j <= 0, "#0072b2")}${line(([, , j]) => j >= 0, "#d55e00")}`;
  };
  const draw = () => {
    outputs.forEach((output, i) => { output.textContent = Number(inputs[i].value).toFixed(2); });
    let svg = panel(22, 90, "factor f(wR; v)", keys.map(f), 1)
      + panel(142, 90, "bias g(R)", keys.map(g), 0);
    svg += `<line x1="40" x2="620" y1="246" y2="246" stroke="#222"/>`;
    for (const j of [-20, -10, 0, 10, 20])
      svg += `<text x="${x(j)}" y="262" text-anchor="middle" font-size="13">${j}</text>`;
    const weights = keys.map((j) => Math.exp(2 * f(j) + g(j)));
    const sum = weights.reduce((a, b) => a + b), largest = Math.max(...weights);
    keys.forEach((j, i) => {
      svg += `<rect x="${x(j) - 7}" y="272" width="14" height="25" stroke="#ccc" fill="#222"
        fill-opacity="${weights[i] / largest}"><title>${(100 * weights[i] / sum).toFixed(2)} %</title></rect>`;
    });
    const share = (side) => keys.reduce((total, j, i) => total + (side(j) ? weights[i] / sum : 0), 0);
    const percent = (side) => `${(100 * share(side)).toFixed(0)} %`;
    svg += `<text x="330" y="316" text-anchor="middle" font-size="13">attention before:
      ${percent((j) => j < 0)}, own key: ${percent((j) => j === 0)}, after: ${percent((j) => j > 0)}</text>`;
    box.querySelector("svg").innerHTML = svg;
  };
  inputs.forEach((input) => input.addEventListener("input", draw));
  draw();
}
</script>
""")

# %% [markdown]
# ## One query and key, four heads
#
# The words below only name the positions: query and key are random, and the same in every panel. At
# w = 0 the coefficient is 1 everywhere, so the second panel shows the ReLU alone: all keys that a
# query disagrees with get one and the same weight. The other two heads bend that map by the distance
# from the diagonal: one flattens what is far from it, the other brings it out.


# %%
def attention_maps(query, key, variant, heads):
    """The maps (heads, queries, keys) of one example, with the same query and key in each head."""
    query, key = (jnp.repeat(array, heads, axis=2) for array in (query, key))
    return np.asarray(attention(query, key, key, variant, weights=True).weights[0])


sentence = "the sailor who had lost his map still knew the way home"
tokens = sentence.split()
query, key = jax.random.normal(jax.random.key(7), (2, 1, len(tokens), 1, 64))
weight = jnp.array([0.0, -0.5, 0.5])
plain = attention_maps(query, key, DotProduct(), heads=1)
aware = attention_maps(query, key, DistanceAware(weight, shape=jnp.ones(3)), heads=3)
titles = ["dot-product head", *(f"distance-aware head, $w = {w:.1f}$" for w in weight)]

figure, panels = plt.subplots(1, 4, figsize=(15, 4.3), sharey=True, layout="constrained")
for axes, title, one_map in zip(panels, titles, [*plain, *aware], strict=True):
    image = axes.imshow(one_map, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1))
    axes.set(title=title, xlabel="key token")
    axes.set_xticks(range(len(tokens)), tokens, rotation=90)
    axes.set_yticks(range(len(tokens)), tokens)
panels[0].set_ylabel("query token")
figure.colorbar(image, ax=panels, label="attention weight (square-root scale)", shrink=0.85)
plt.show()

# %% [markdown]
# ## A local head does not remove what is far: it averages it
#
# A coefficient of 0 makes a score 0, not -∞, and a score of 0 weighs e⁰ = 1 before normalisation. One
# such key is little, but a long sequence has many of them. Below, query and key are standard normal.
# Keys count as *far* from the first distance on at which the coefficient is under `small`.

# %%
length, width, small = 1024, 64, 0.01
weight = jnp.array([-0.3, -0.1, -0.03])
local = DistanceAware(weight, shape=jnp.ones(3))
radii = np.argmax(coefficients(local, jnp.arange(length)) < small, axis=1)

query, key = jax.random.normal(jax.random.key(0), (2, 1, length, 1, width))
plain = attention_maps(query, key, DotProduct(), heads=1)[0]
aware = attention_maps(query, key, local, heads=3)
even = np.full_like(plain, 1 / length)
distance = np.abs(np.arange(length)[:, None] - np.arange(length)[None, :])


def mass_at(one_map):
    """Entry R: the share of the attention on keys at distance R, mean over the queries."""
    return np.bincount(distance.ravel(), one_map.ravel()) / length


def mass_beyond(one_map):
    """Entry R: the share of the attention on keys at distance R or farther."""
    return mass_at(one_map)[::-1].cumsum()[::-1]


print("                              attention mass on far keys    far keys of one query:")
print("    w   far from   far keys   this head   dot product       largest / smallest weight")
for w, radius, one_map in zip(weight, radii, aware, strict=True):
    keys, this, other = (mass_beyond(each)[radius] for each in (even, one_map, plain))
    far = distance >= radius
    ratio = np.where(far, one_map, 0).max(axis=1) / np.where(far, one_map, 1).min(axis=1)
    shares = f"{keys:8.1%}   {this:9.1%}   {other:11.1%}"
    print(f"{w:5.2f}   {radius:8d}   {shares}   {ratio.mean():29.3f}")

# %% [markdown]
# The far keys of a query all weigh nearly the same, and together nearly as much as in a dot-product
# head. So the coefficient alone does not make a head local. Large scores for the near keys do
# (footnote 1 of the paper): in the last panel the query, and with it every score, is multiplied.

# %%
names = ["dot product", *(f"$w = {w:.2f}$" for w in weight)]
colours = ["black", "#0072B2", "#009E73", "#D55E00"]
edges = np.unique(np.geomspace(1, length + 1, 25).astype(int)) - 1  # bins, wider when far
scales = [1, 2, 4, 8, 16]


def far_mass(variant, scale):
    """The share of each head's attention on the keys that are far for the local head."""
    maps = attention_maps(scale * query, key, variant, heads=3)
    return [mass_beyond(each)[radius] for each, radius in zip(maps, radii, strict=True)]


figure, (share, beyond, scaled) = plt.subplots(1, 3, figsize=(15, 4.3), layout="constrained")
for one_map, name, colour in zip([plain, *aware], names, colours, strict=True):
    binned, count = (np.add.reduceat(mass_at(each), edges[:-1]) for each in (one_map, even))
    share.stairs(binned / count, edges, baseline=None, color=colour, label=name, linewidth=1.5)
    beyond.plot(mass_beyond(one_map), color=colour, label=name)
for one_map, radius, colour in zip(aware, radii, colours[1:], strict=True):
    beyond.plot(radius, mass_beyond(one_map)[radius], "o", color=colour)
masses, dot_masses = (
    np.array([far_mass(variant, scale) for scale in scales]) for variant in (local, DotProduct())
)
for head, colour in enumerate(colours[1:]):
    scaled.plot(scales, masses[:, head], "o-", color=colour, label=names[head + 1])
    scaled.plot(scales, dot_masses[:, head], ":", color=colour)
scaled.plot([], [], ":", color="black", label="dot product,\nsame far keys")

share.set(title="what one key gets", xlabel="distance (tokens)")
share.set(ylabel="weight of a key, times length (1: even)")
share.set_xscale("symlog", linthresh=1)
share.set(xlim=(0, length), ylim=(0, None))
share.set_xticks([0, 1, 10, 100, 1000], [0, 1, 10, 100, 1000])
beyond.set(title="what all keys beyond get (dots: far begins)", xlabel="distance (tokens)")
beyond.set(ylabel="attention mass at this distance or farther")
scaled.set(title="large scores make a head local", xlabel="query multiplied by")
scaled.set(ylabel="attention mass on far keys", ylim=(0, None))
scaled.set_xscale("log", base=2)
scaled.set_xticks(scales, scales)
for axes in (share, beyond, scaled):
    axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The longer the text, the more a local head leaves far away
#
# Far keys have the weight e⁰ each, so their share grows with their number. The near keys keep their
# part only if their scores are large. The scores below have a standard deviation of 1, 4 or 16.

# %%
lengths = [64, 128, 256, 512, 1024]
one_head = DistanceAware(weight[1:2], shape=jnp.ones(1))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for scale, style in ((1, "-"), (4, "--"), (16, ":")):
    shares = []
    for n in lengths:
        head = attention_maps(scale * query[:, :n], key[:, :n], one_head, heads=1)
        shares.append(head[0][distance[:n, :n] >= radii[1]].sum() / n)
    axes.plot(lengths, shares, "o" + style, color=colours[2], label=f"scores of size {scale}")
axes.set(xlabel="length (tokens)", ylabel="attention mass on far keys", ylim=(0, 1))
axes.set_title(f"head with w = -0.1: keys from distance {radii[1]} on are far")
axes.set_xscale("log", base=2)
axes.set_xticks(lengths, lengths)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The heads of a trained model
#
# Which opinion about the service does a sentence hold? It is the one nearest to the word "service".
# A tiny model that has learned this is a part of the package. Its heads began with |w| near 0.2, half of
# them local. Training about doubled |w|: the coefficients of the two local heads fall below a half within
# three words.

# %%
from distattn_jax import plot
from distattn_jax.tasks import TRAINED, attend_to_texts, load

loaded = load(TRAINED["nearest"])  # model, tokenizer, labels, config
sentence = "the awful room we had on friday , service quite pleasant with a superb view"
(part,) = attend_to_texts(loaded, [sentence]).values()
(trained,) = part.variants  # w and v of the only layer
plot.coefficient_curves(trained.weight, trained.shape, max_distance=20)

# %% [markdown]
# In head 1, which is local, "service" looks at "pleasant", the nearest opinion, and at nothing else.

# %%
ids = loaded.tokenizer.encode(sentence).ids
logits = loaded.model(jnp.array([ids]), jnp.array([len(ids)])).logits[0]
print("The model says:", loaded.labels[int(logits.argmax())])
titles = [f"head {i + 1}, w = {w:.2f}" for i, w in enumerate(trained.weight)]
plot.attention_maps(
    dict(zip(titles, part.maps[0], strict=True)), part.tokens, columns=4, max_weight=0.4
)

# %% [markdown]
# **Take home:** w and v decide how much the agreement of query and key counts at each distance. They hide
# no key: a local head still averages all distant keys, unless the scores of near keys are much larger.
# A bias that falls with the distance lets a head forget them, on each side of the query in its own way.
#
# **Next:** [How do I bring distance-aware attention and guides into my own Flax model?](your_own_model.ipynb)
