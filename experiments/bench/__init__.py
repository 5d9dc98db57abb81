"""What `python -m experiments bench` times, how it does so, and how it is printed."""
