"""The recipe: its keys and their values, where object and probe start, what Python gives in its place."""
