"""What was run, and how: `python -m experiments`."""
