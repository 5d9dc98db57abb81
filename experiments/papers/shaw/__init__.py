"""Relative positions (Shaw et al. 2018): published numbers, tables, figures, report."""
