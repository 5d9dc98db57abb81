"""The benchmark `python -m experiments bench`: cases, timing, table and figure."""
