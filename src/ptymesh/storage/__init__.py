"""Where a rank keeps its patterns: on the device, on the host or on a disk."""
