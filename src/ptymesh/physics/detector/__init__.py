"""The detector: what it makes of the light that reaches it, counts included, and where its pixels look."""
