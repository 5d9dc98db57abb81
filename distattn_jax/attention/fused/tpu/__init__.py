"""Fused attention kernels for TPUs, written in Pallas."""
