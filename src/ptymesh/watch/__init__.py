"""A page in the browser that shows runs as they are in their folders; a run does not know that it is watched."""
