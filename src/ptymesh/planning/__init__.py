"""What a run will need, before it begins: its batches, memory, messages and work; which layout to take."""
