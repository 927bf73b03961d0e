"""Training logs of every format: what is read of them, and what is said."""
