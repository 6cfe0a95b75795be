"""The loop-level IR: buffers, loop nests and scalar expressions as frozen data, and its text form."""
