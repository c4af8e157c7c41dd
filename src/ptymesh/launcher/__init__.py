"""Starting of ranks, supervision of running ranks, and tests of the machine that they run on."""
