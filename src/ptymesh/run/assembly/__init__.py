"""Beginning of a reconstruction: data that were checked, ranks that agree, a problem and a first estimate."""
