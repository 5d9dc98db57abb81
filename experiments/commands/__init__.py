"""The commands of `python -m experiments`, a module each: its first line is its help."""
