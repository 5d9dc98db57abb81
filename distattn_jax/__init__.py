"""distattn_jax: attention that knows distance, and attention that is guided, in JAX."""

__version__ = "1.0.0"
