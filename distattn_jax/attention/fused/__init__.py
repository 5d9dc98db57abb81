"""Fused attention: kernels that compute scores, softmax and values tile by tile.

This package contains the code that the kernels for all chips share. Import the kernels for one type
of chip from a subpackage, for example `distattn_jax.attention.fused.gpu`. These kernels are not
imported here, because importing Pallas takes a while.
"""
