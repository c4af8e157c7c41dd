"""Storage of a rank's patterns: on the device, in the host's memory or on a disk."""
