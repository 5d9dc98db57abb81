"""Models: encoders of any attention, with what their tasks put around them."""

from distattn_jax.models.methods import METHODS, Method, Sizes
from distattn_jax.models.text_classifier import Classified, TextClassifier

__all__ = ["METHODS", "Classified", "Method", "Sizes", "TextClassifier"]
