"""New code for a frame: side effects, objects made again, calls before the graph."""
