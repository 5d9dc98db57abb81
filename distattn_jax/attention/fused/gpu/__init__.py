"""Kernels for Hopper GPUs in Pallas Mosaic GPU."""
