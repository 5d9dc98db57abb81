"""Benchmarks: cases, timing, table and figure of `bench`, and the trainers that `speed` times."""
