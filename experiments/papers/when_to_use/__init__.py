"""Tasks where distance may help: tagging, long texts, and texts longer than in training."""
