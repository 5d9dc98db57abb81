"""Attention maps for tests of interactive pages, readers of pages, and the size of figures."""

import base64
import json
import re
import zlib

import jax.numpy as jnp
import numpy as np

from distattn_jax.attention import DistanceAware, TwoSided

TOKENS = ["the", "<b>service</b>", "was", "</script>", "&amp;", "awful"]


def random_maps(*shape, seed=0):
    """Return attention weights of this shape (L, N, T, S)."""
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.5), shape[:-1])


def distance_aware(layers=2, heads=3):
    """Return a distance-aware variant for each layer. Heads alternate between w < 0 and w > 0."""
    weight = jnp.asarray([-0.5, 0.25, -0.125, 0.75][:heads], jnp.float32)
    return [DistanceAware(weight * (i + 1), jnp.full(heads, 0.5)) for i in range(layers)]


def two_sided():
    """Return the variant of three heads with w, v and the bias of constants and ALiBi's slopes."""
    weight = jnp.asarray([[-0.5, 0.25], [0.5, 0.125], [-1.0, -0.25]])
    constants = jnp.asarray([[1.0, -2.0], [0.5, 0.25], [0.0, 3.0]])
    biases = constants, jnp.full((3, 2), 0.5)
    return TwoSided(weight, jnp.full((3, 2), 0.5), biases, ("constant", "alibi"))


def read_data(page):
    """Return the data of a page, as a browser reads it."""
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page.html, re.DOTALL)[1])


def unpack(packed):
    """Return an array of the data of a page."""
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), packed["dtype"])
    return values.reshape(packed["shape"])


def lies_inside(figure):
    """Return True if everything that is drawn lies inside of the figure."""
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    return min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0
