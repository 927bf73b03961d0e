"""Questions that people asked in public, each with an input that they could have given."""
