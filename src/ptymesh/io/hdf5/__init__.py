"""HDF5 files: read though they may be damaged or hostile, written though the disk may be full."""
