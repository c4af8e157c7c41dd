"""Starting ranks, waiting for them, and looking at the machine that they run on."""
