"""Where distance helps: long texts, and texts that are longer than in training."""
