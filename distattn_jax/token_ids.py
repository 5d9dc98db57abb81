"""Ids of special tokens, which tokenizers and models share."""

PADDING_ID = 0
END_ID = 2  # ends a text; id 1 is an unknown word
