"""Kernels for Hopper GPUs, written in Pallas Mosaic GPU."""
