"""Results in the file formats of other programs: one module per format, which writes and, where it can, reads it."""
