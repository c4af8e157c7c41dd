"""Display of scans, reconstructions, results and studies in notebooks, one module for each.

`html` returns a fragment of HTML that contains its pictures, `figure` a matplotlib figure. Ranks exchange nothing for
it: of an object in tiles, a rank shows its own part.
"""
