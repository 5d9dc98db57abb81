"""How models are trained: the loop, what it writes and what it shows."""
