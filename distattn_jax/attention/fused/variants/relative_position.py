"""Relative position attention (Shaw et al. 2018) in the kernels: see `relations`."""

from distattn_jax.attention.fused.kernel_view import KernelForm, KernelView, register
from distattn_jax.attention.fused.relations import resize_table, unsupported_distance_reason
from distattn_jax.attention.fused.scoring import DotProductScoring, RelationScoring
from distattn_jax.attention.variants import RelativePosition


@register(RelativePosition)
class RelativePositionView(KernelView):
    """`KernelView` of relative position attention, with a table for keys, for values, or both."""

    def make_form(self, variant, block):
        distances = _clip_distances(variant)
        if not distances:
            return KernelForm(DotProductScoring(block.scale), block.query, block.key)
        # Relations that are clipped at 0 equal relations with repeated vectors that are clipped
        # at 1. The two tables of a call are resized to the larger one in the same way.
        clip_distance = max(1, *distances)
        key_table, value_table = (
            None if table is None else resize_table(table, clip_distance)
            for table in (variant.keys, variant.values)
        )
        scoring = RelationScoring(
            block.scale,
            clip_distance,
            has_relation_products=key_table is not None,
            has_relation_weights=value_table is not None,
        )
        return KernelForm(
            scoring, block.query, block.key, key_table=key_table, value_table=value_table
        )

    def unsupported_reason(self, variant, block, chip):
        return unsupported_distance_reason(max(_clip_distances(variant), default=0))


def _clip_distances(variant: RelativePosition) -> list[int]:
    """Return the clip distance k of the table for keys and of the table for values.

    A table has 2k + 1 relations. The list has no entry for a table that is None.
    """
    return [table.shape[1] // 2 for table in (variant.keys, variant.values) if table is not None]
