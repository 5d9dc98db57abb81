"""Multi-head attention with any attention variant, a replacement for `nnx.MultiHeadAttention`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from distattn_jax.attention import Attended, DotProduct, Rotary, rotate
from distattn_jax.attention.dropout import is_off
from distattn_jax.attention.rotary import check_rotary, check_self_attention
from distattn_jax.attention.validation import check_flags
from distattn_jax.modules.batch_axes import attention_over_batch_axes, is_known, nan_where
from distattn_jax.modules.dropout import Rate, Rngs, dropout_key
from distattn_jax.modules.explicit_mesh import is_explicit, shard_alike


class MultiHeadAttention(nnx.MultiHeadAttention):
    """Multi-head attention with any attention variant.

    The class can replace `nnx.MultiHeadAttention`: its arguments and parameters have the same
    names, with a few differences. `variant` replaces `attention_fn`, and the parameters of the
    variant are added. `num_key_value_heads` replaces `num_kv_heads`. The random number generators
    of dropout are passed to each call.

    Args:
      num_heads: Number of attention heads N.
      in_features: Width D of the inputs.
      qkv_features: Width N H of all heads together. None means D.
      out_features: Width of the output. None means D.
      num_key_value_heads: Number of heads K of keys and values, a divisor of N. Query head n
        attends to key head n // (N / K). None means N.
      variant: Module that returns an attention variant when called, such as
        `modules.DistanceAware`. None means dot-product attention.
      rotary: Rotary positions, which rotate queries and keys before the attention of any variant.
        They serve self-attention. None means no rotation.
      project_key: If True, a dense layer computes the keys from the inputs. If False, the inputs
        are split into heads and used as keys, as in TENER.
      project_out: If True, a dense layer computes the output from the heads. If False, the output
        is the concatenation of the heads, as in TENER.
      scale: Factor that multiplies the dot products of queries and keys. None means the default of
        the variant.
      local_window_size: Pair (left, right). A query attends to keys at most `left` positions before
        it and at most `right` positions after it. One integer stands for both. None means that keys
        at all distances are visible.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: Other arguments of `nnx.MultiHeadAttention`. `precision` applies to the dense
        layers, and is passed on to `attention`: "BF16_BF16_F32" lets the fused kernels for 16-bit
        inputs compute the attention of a float32 layer.
    """

    key: Any  # the dense layer of the keys, or None
    out: Any  # the dense layer of the output, or None

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        *,
        num_key_value_heads: int | None = None,
        variant: nnx.Module | None = None,
        rotary: Rotary | None = None,
        project_key: bool = True,
        project_out: bool = True,
        scale: float | None = None,
        local_window_size: int | tuple[int, int] | None = None,
        implementation: str | None = None,
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        for name, instead in (
            ("attention_fn", "set the attention with `variant`"),
            ("num_kv_heads", "set the heads of keys and values with `num_key_value_heads`"),
            ("keep_rngs", "pass `rngs` to the call"),
        ):
            if name in arguments:
                raise ValueError(f"{name} is not supported: {instead}.")
        if num_key_value_heads is None:
            num_key_value_heads = num_heads
        if num_key_value_heads < 1 or num_heads % num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must be a divisor of num_heads ({num_heads}); "
                f"got {num_key_value_heads}."
            )
        if variant is not None and not isinstance(variant, nnx.Module):
            raise TypeError(
                "variant must be None or a module that returns an attention variant, such as "
                f"`modules.DistanceAware(num_heads, rngs=rngs)`; got {variant!r}."
            )
        super().__init__(
            num_heads,
            in_features,
            qkv_features,
            out_features,
            num_kv_heads=num_key_value_heads,
            keep_rngs=False,
            rngs=rngs,
            **arguments,
        )
        self.variant = nnx.data(variant)
        if rotary is not None:
            check_rotary(rotary, self.head_dim)
            if self.in_kv_features != self.in_features:
                raise ValueError(
                    "rotary must be None for cross-attention; got in_kv_features="
                    f"{self.in_kv_features} and in_features={self.in_features}."
                )
        self.rotary = rotary
        self.scale, self.local_window_size = scale, local_window_size
        self.implementation = implementation
        if not project_key:
            _check_same_width("project_key", self.in_kv_features, self.num_kv_heads * self.head_dim)
            self.key = nnx.data(None)
        if not project_out:
            _check_same_width("project_out", self.qkv_features, self.out_features)
            self.out = nnx.data(None)

    def __call__(
        self,
        inputs_q: Float[Array, "*batch T D"],
        inputs_k: Float[Array, "*batch S F"] | None = None,
        inputs_v: Float[Array, "*batch S F"] | None = None,
        *,
        key_value: tuple[Array, Array] | None = None,
        mask: Array | None = None,
        query_lengths: Array | None = None,
        key_lengths: Array | None = None,
        is_causal: bool = False,
        query_offset: int | Array = 0,
        query_segments: Array | None = None,
        key_segments: Array | None = None,
        deterministic: bool | None = None,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        decode: bool | None = None,
        sow_weights: bool = False,
        received: bool = False,
        weights: bool = False,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
    ) -> Any:
        """Project inputs to queries, keys and values, compute attention, and project the output.

        Args:
          inputs_q: Inputs of the queries, shape (..., T, D).
          inputs_k: Inputs of the keys, shape (..., S, in_kv_features). None means `inputs_q`.
          inputs_v: Inputs of the values, shape (..., S, in_kv_features). None means `inputs_k`.
          key_value: Pair of keys and values, from `project_key_value` or from a cache. They are
            used instead of `inputs_k` and `inputs_v`, which must be None. If the layer has rotary
            positions, these keys are already rotated.
          mask: True or 1 where a query may attend to a key, shape (..., N, T, S). Each axis may
            also have size 1.
          query_lengths: Number of queries of each example before padding. None means no padding.
          key_lengths: Number of keys of each example before padding. None means no padding.
          is_causal: If True, a query attends only to keys at its own or an earlier position.
          query_offset: Position of the first query minus the position of the first key.
          query_segments: Segment number of each query, shape (..., T), for several sequences packed
            into a row. A query attends only to keys of its own segment.
          key_segments: Segment number of each key, shape (..., S). None means `query_segments` for
            self-attention without a cache. When decoding, S is the length of the cache.
          deterministic: True disables dropout. None means the value of the constructor. If this
            value is also None, dropout is disabled when `rngs` is None.
          dropout_rate: Replaces the dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout.
          decode: If True, append keys and values to the cache that `init_cache` made, and attend
            causally to the whole cache. If the keys do not fit into the cache, a ValueError is
            raised. Inside of `jax.jit`, where the number of cached keys is unknown, all outputs
            become NaN instead. None means the value of the constructor.
          sow_weights: If True, sow the attention weights as `attention_weights`.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (..., N, S).
          weights: If True, also return the attention weights, shape (..., N, T, S).
          out_sharding: Sharding of the output. None means the sharding of `inputs_q`.
          qkv_sharding: Sharding of the projected queries, keys and values.

        Returns:
          Output, shape (..., T, out_features). If `received` or `weights` is True, an `Attended`
          whose field `values` is this output.
        """
        decode = self.decode if decode is None else decode
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        if self.normalize_qk:
            query = self.query_ln(query)  # type: ignore[misc]
        if key_value is not None:
            if decode or inputs_k is not None or inputs_v is not None:
                raise ValueError("key_value must be None with inputs_k, inputs_v or decode=True.")
            key, value = key_value
        else:
            if inputs_k is None:
                if inputs_v is not None:
                    raise ValueError("inputs_k must be given with inputs_v; got None.")
                inputs_k = inputs_q
                if key_segments is None and not decode:
                    key_segments = query_segments
            elif self.rotary is not None and not decode:
                check_self_attention(inputs_q.shape[-2], inputs_k.shape[-2], query_offset)
            first = self.cache_index[...] if decode and self.cache_index is not None else 0
            key, value = self.project_key_value(
                inputs_k, inputs_v, positions=first, qkv_sharding=qkv_sharding
            )
        overflows: bool | Array = False
        if decode:
            check_flags(is_causal=is_causal)
            if not (isinstance(query_offset, int) and query_offset == 0):
                raise ValueError(
                    f"query_offset must be 0 when decoding: the cache sets it; got {query_offset}."
                )
            new_keys = key.shape[-3]
            key, value, query_offset, overflows = self._append_to_cache(key, value)
            is_causal = True
        if self.rotary is not None:
            query = rotate(query, self.rotary, query_offset)
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        attended = attention_over_batch_axes(
            query,
            key,
            value,
            DotProduct() if self.variant is None else self.variant(),
            mask=mask,
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            is_causal=is_causal,
            query_offset=query_offset,
            query_segments=query_segments,
            key_segments=key_segments,
            scale=self.scale,
            local_window_size=self.local_window_size,
            received=received,
            weights=weights or sow_weights,
            precision=self.precision,
            implementation=self.implementation,
            **self._dropout_arguments(rate, deterministic, rngs),
        )
        attended = nan_where(overflows, attended, query.shape[:-3])
        if sow_weights:
            self.sow(nnx.Intermediate, "attention_weights", attended.weights)
        output = self._project_output(
            attended.values, out_sharding or jax.typeof(inputs_q).sharding
        )
        if decode:  # only now, because a call that raises an error must not change the cache
            cached: Any = (self.cached_key, self.cached_value, self.cache_index)
            for cache, x in zip(cached, (key, value, query_offset + new_keys), strict=True):
                cache[...] = x
        if not (received or weights):
            return output
        return Attended(output, attended.received, attended.weights if weights else None)

    def project_key_value(
        self,
        inputs_k: Float[Array, "*batch S F"],
        inputs_v: Float[Array, "*batch S F"] | None = None,
        *,
        positions: int | Array = 0,
        qkv_sharding: Any = None,
    ) -> tuple[Array, Array]:
        """Compute the keys and values from the inputs, each of shape (..., S, K, H).

        If the layer has rotary positions, the keys are rotated. The rotation of a key depends on
        its own position alone, so that a cache can hold rotated keys.

        Args:
          inputs_k: Inputs of the keys.
          inputs_v: Inputs of the values. None means `inputs_k`.
          positions: Position of the first key: one integer for all examples, or one for each
            example, such as the number of cached keys. Only rotary positions use it.
          qkv_sharding: Sharding of keys and values.
        """
        value = self.value(inputs_k if inputs_v is None else inputs_v, out_sharding=qkv_sharding)
        if self.key is None:
            key = inputs_k.reshape(*inputs_k.shape[:-1], self.num_kv_heads, self.head_dim)
        else:
            key = self.key(inputs_k, out_sharding=qkv_sharding)
        if self.normalize_qk:
            key = self.key_ln(key)  # type: ignore[misc]
        return (key if self.rotary is None else rotate(key, self.rotary, positions)), value

    def _dropout_arguments(
        self, rate: Rate, deterministic: bool | None, rngs: Rngs | None
    ) -> dict[str, Any]:
        """Return the dropout arguments of `attention`, or an empty dict if dropout is disabled."""
        if deterministic is None:
            deterministic = rngs is None if self.deterministic is None else self.deterministic
        if deterministic or is_off(rate):
            return {}
        if rngs is None:
            raise ValueError("rngs must be passed to the call when deterministic=False; got None.")
        return {"dropout_rate": rate, "dropout_key": dropout_key(rngs)}

    @property
    def cache_dtype(self) -> Any:
        """Dtype of cached keys and values.

        It is `dtype` of the constructor. If that is None, it is the dtype of the parameters, but at
        least float32.
        """
        return self.dtype or jnp.promote_types(self.param_dtype, jnp.float32)

    def init_cache(
        self, input_shape: Sequence[int], dtype: Any = None, out_sharding: Any = None
    ) -> None:
        """Make an empty cache for decoding, as variables of this module.

        Args:
          input_shape: Shape (..., length, D) of the whole decoded sequence, not of one step. The
            cache has room for `length` keys.
          dtype: Dtype of the cached keys and values. None means `dtype` of the constructor. If this
            is also None, the cache has the dtype of the parameters, promoted to at least float32.
          out_sharding: Sharding of the cached keys and values, shape (..., length, K, H), on a mesh
            with Explicit axes. If None, the cache takes the sharding of the keys of the first call.
        """
        if dtype is None:
            dtype = self.cache_dtype
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key = nnx.Cache(jnp.zeros(shape, dtype, out_sharding=out_sharding))
        self.cached_value = nnx.Cache(jnp.zeros(shape, dtype, out_sharding=out_sharding))
        self.cache_index = nnx.Cache(jnp.zeros((), jnp.int32))

    def _append_to_cache(
        self, key: Array, value: Array
    ) -> tuple[Array, Array, Array, bool | Bool[Array, ""]]:
        """Return the contents of the cache with keys and values appended. The cache is unchanged.

        The caller must use causal attention, which hides the part of the cache that is not filled.

        Returns:
          A tuple (keys, values, first, overflows): all cached keys, all cached values, the position
          of the first appended key, and True if the new keys do not fit into the cache.
        """
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise ValueError(
                "Decoding needs a cache, which is missing: call init_cache(input_shape) first."
            )
        *batch, length, heads, width = self.cached_key.shape
        new = key.shape[-3]
        if key.shape != (*batch, new, heads, width) or new > length:
            raise ValueError(
                f"The cache holds {tuple(batch)} x {length} keys of shape {(heads, width)}; "
                f"got keys of shape {key.shape}."
            )
        first = self.cache_index[...]
        overflows: Any = first + new > length
        if is_known(first):
            if int(first) + new > length:
                raise ValueError(
                    f"The cache has room for {length} keys, of which {first} are filled; got {new} "
                    "more. Call init_cache with a longer input_shape and decode from the start."
                )
            overflows = False
        filled = []
        for cache, x in ((self.cached_key, key), (self.cached_value, value)):
            cached, x = shard_alike(cache[...], x.astype(cache.dtype), axis=-3)
            filled.append(jax.lax.dynamic_update_slice_in_dim(cached, x, first, axis=len(batch)))
        return *filled, first, overflows

    def _project_output(self, values: Float[Array, "*batch T N H"], sharding: Any) -> Array:
        """Apply the dense output layer. With `project_out=False`, concatenate the heads instead."""
        if self.out is not None:
            return self.out(values, out_sharding=sharding)
        if is_explicit(values):
            values = jax.sharding.reshard(values, jax.P(*sharding.spec[:-1], None, None))
        return values.reshape(*values.shape[:-2], -1)


def _check_same_width(name: str, input_width: int, output_width: int) -> None:
    """Raise a ValueError unless input and output have the same width.

    Without a dense layer, the width cannot change.

    Args:
      name: Name of the argument that removes the dense layer, for the error message.
      input_width: Width of the input.
      output_width: Width of the output.
    """
    if input_width != output_width:
        raise ValueError(
            f"{name}=False requires inputs and outputs of the same width; "
            f"got {input_width} and {output_width}."
        )
