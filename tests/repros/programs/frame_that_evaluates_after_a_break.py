"""`eval()` behind a graph break did not see locals that nothing else reads."""

import firebrick


def main(x, y, m, n, f, items, table, box):
    here = 5
    y = x + here
    firebrick.graph_break()
    return y + eval("here + 1")
