"""Preparation of a scan: checks, window, positions, and what a survey of all patterns tells."""
