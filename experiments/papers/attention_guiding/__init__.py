"""The attention-guiding paper (Wang et al. 2022): published numbers, tables, figures, report."""
