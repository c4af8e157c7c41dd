"""File formats: one module for each, with NAME, recognises(path, data) and read(path, data); `io.load` asks them."""
