"""The DA-Transformer paper (Wu et al. 2021): published numbers, tables, figures, report."""
