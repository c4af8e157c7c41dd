"""Speed of engines and of ranks, measured on this machine."""
