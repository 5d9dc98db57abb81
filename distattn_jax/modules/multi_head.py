"""Multi-head attention of any variant, in the place of `nnx.MultiHeadAttention`."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.attention import Attended, DotProduct
from distattn_jax.attention.dropout import is_off
from distattn_jax.modules.batches import attention_over_batches
from distattn_jax.modules.dropout import Rate, Rngs, dropout_key


class MultiHeadAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention` with another attention between its projections.

    It takes the same arguments and calls and has the same parameter tree, (D, N, H) in and
    (N, H, D) out, so that heads shard; with `variant`, that module's parameters besides. It keeps
    no generator: dropout happens when `rngs` is given to the call.

    Args:
      num_heads: N.
      in_features: D, the width of the inputs.
      qkv_features: N H, the width of all heads together (default: D).
      out_features: width of the output (default: D).
      variant: a module that builds a variant, such as `modules.DistanceAware`; None: dot product.
      project_key: False: keys are the inputs, cut into heads (TENER).
      project_out: False: the output is the heads side by side (TENER).
      implementation: as in `attention`.
      rngs: draws the parameters.
      **arguments: the other arguments of `nnx.MultiHeadAttention`.
    """

    key: Any  # a projection, or None
    out: Any  # a projection, or None

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        *,
        variant: nnx.Module | None = None,
        project_key: bool = True,
        project_out: bool = True,
        implementation: str | None = None,
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        for name in ("attention_fn", "num_kv_heads", "keep_rngs"):
            if name in arguments:
                raise ValueError(
                    f"{name} is not an argument here: the attention is `variant`, keys have as "
                    "many heads as queries, and `rngs` belongs to the call."
                )
        super().__init__(
            num_heads,
            in_features,
            qkv_features,
            out_features,
            keep_rngs=False,
            rngs=rngs,
            **arguments,
        )
        self.variant = nnx.data(variant)
        self.implementation = implementation
        if not project_key:
            _check_unprojected("project_key", self.in_kv_features, self.qkv_features)
            self.key = nnx.data(None)
        if not project_out:
            _check_unprojected("project_out", self.qkv_features, self.out_features)
            self.out = nnx.data(None)

    def __call__(
        self,
        inputs_q: Float[Array, "*batch T D"],
        inputs_k: Float[Array, "*batch S K"] | None = None,
        inputs_v: Float[Array, "*batch S K"] | None = None,
        *,
        mask: Array | None = None,
        query_lengths: Array | None = None,
        key_lengths: Array | None = None,
        is_causal: bool = False,
        query_offset: int | Array = 0,
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
        """Projects, attends, projects.

        Args:
          inputs_q: where the queries come from.
          inputs_k: where the keys come from; None: `inputs_q`.
          inputs_v: where the values come from; None: `inputs_k`.
          mask, query_lengths, key_lengths, is_causal, query_offset: as in `attention`.
          deterministic: True: no dropout. None: what the constructor was given, else whether
            there are no `rngs`.
          dropout_rate: instead of the constructor's; may be traced.
          rngs: generator of the dropout.
          decode: whether to append keys and values to the cache and attend to all of it, causally.
          sow_weights: whether to sow the weights as `attention_weights`.
          received, weights: as in `attention`.
          out_sharding: sharding of the output; None: that of `inputs_q`.
          qkv_sharding: sharding of the projections.

        Returns:
          The output, or an `Attended` with the output as its values if more is asked for.
        """
        if inputs_k is None:
            if inputs_v is not None:
                raise ValueError("inputs_k must be given with inputs_v; got None.")
            inputs_k = inputs_q
        inputs_v = inputs_k if inputs_v is None else inputs_v
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.key is None:
            key = inputs_k.reshape(*inputs_k.shape[:-1], self.num_heads, self.head_dim)
        else:
            key = self.key(inputs_k, out_sharding=qkv_sharding)
        if self.normalize_qk:
            query, key = self.query_ln(query), self.key_ln(key)  # type: ignore[misc]
        if self.decode if decode is None else decode:
            if not (isinstance(query_offset, int) and query_offset == 0):
                raise ValueError("query_offset must be 0 when decoding: the cache knows it.")
            key, value, query_offset = self._remember(key, value)
            is_causal = True
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        attended = attention_over_batches(
            query,
            key,
            value,
            DotProduct() if self.variant is None else self.variant(),
            mask=mask,
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            is_causal=is_causal,
            query_offset=query_offset,
            received=received,
            weights=weights or sow_weights,
            implementation=self.implementation,
            **self._dropout(rate, deterministic, rngs),
        )
        if sow_weights:
            self.sow(nnx.Intermediate, "attention_weights", attended.weights)
        output = self._output(attended.values, out_sharding or jax.typeof(inputs_q).sharding)
        if not (received or weights):
            return output
        return Attended(output, attended.received, attended.weights if weights else None)

    def _dropout(self, rate: Rate, deterministic: bool | None, rngs: Rngs | None) -> dict[str, Any]:
        if deterministic is None:
            deterministic = rngs is None if self.deterministic is None else self.deterministic
        if deterministic or is_off(rate):
            return {}
        if rngs is None:
            raise ValueError("rngs must be given to the call when deterministic=False; got None.")
        return {"dropout_rate": rate, "dropout_key": dropout_key(rngs)}

    def _remember(self, key: Array, value: Array) -> tuple[Array, Array, Array]:
        """Appends to the cache; returns all of it, and where the new part begins.

        Slots not yet filled lie in the future: the causal mask hides them.
        """
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise ValueError(
                "There is no cache to decode with: call init_cache(input_shape) first."
            )
        *batch, length, heads, width = self.cached_key.shape
        if key.shape != (*batch, key.shape[-3], heads, width) or key.shape[-3] > length:
            raise ValueError(
                f"The cache holds {tuple(batch)} x {length} keys of shape {(heads, width)}; "
                f"got keys of shape {key.shape}."
            )
        first = self.cache_index[...]
        start: list[Any] = [*([0] * len(batch)), first, 0, 0]
        for cache, new in ((self.cached_key, key), (self.cached_value, value)):
            cache[...] = jax.lax.dynamic_update_slice(cache[...], new.astype(cache.dtype), start)
        self.cache_index[...] = first + key.shape[-3]
        return self.cached_key[...], self.cached_value[...], first

    def _output(self, values: Float[Array, "*batch T N H"], sharding: Any) -> Array:
        if self.out is not None:
            return self.out(values, out_sharding=sharding)
        if jax.sharding.AxisType.Explicit in sharding.mesh.axis_types:
            values = jax.sharding.reshard(values, jax.P(*sharding.spec[:-1], None, None))
        return values.reshape(*values.shape[:-2], -1)


def _check_unprojected(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise ValueError(
            f"{name}=False needs inputs and outputs of the same width; got {given} and {wanted}."
        )
