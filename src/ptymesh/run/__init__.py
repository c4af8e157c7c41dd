"""A run from its recipe to its result: the only loop, the state of a run, the interface of Python."""
