"""NVIDIA GPUs: facts of a card, plans of kernels as tiles, their text in Triton, and cubins of it.

group's statements
  | planner.py     which loops become dimensions of a tile, in which phases the work is done
  | tiling.py      sizes of blocks and numbers of warps, from the card's facts and the bytes moved
  v
tile.Body          frozen data that prints
  | triton_text.py
  v
Triton text -> cubin (build.py, in worker processes)
"""
