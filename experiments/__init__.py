"""Experiments: recipes, benchmarks, the tables and figures of the papers, and their commands."""
