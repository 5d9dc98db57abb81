"""Portable form of the GPU kernels, for every NVIDIA GPU from compute capability 8.0 on.

The Hopper form uses instructions that only Hopper GPUs have. This folder replaces them:

    Hopper form                                       portable form
    `wgmma`: asynchronous matrix instructions         `products`: `mma.sync`
    `tile_copies`: copy engine (TMA) and barriers     `copies`: `cp.async`
    `tile_loop`: one more warpgroup that copies       `tile_loop`: all threads copy and compute
    `tile_selection`: tile sizes for an H200          `tile_selection`: tile sizes by chip

All other modules of the package `gpu` belong to both forms.
"""
