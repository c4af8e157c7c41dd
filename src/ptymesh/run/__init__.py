"""A reconstruction from its recipe to its result, and the only loop."""
