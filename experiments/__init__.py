"""Experiments: recipes, benchmarks, tables and figures of the papers, and the command line."""
