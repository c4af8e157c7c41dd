"""What notebooks show of a scan, a reconstruction, a result and a study; one module for each.

`html` returns a fragment of HTML with its pictures inside, `figure` a matplotlib figure. Nothing is shared between
ranks: of an object in tiles, a rank shows its own part.
"""
