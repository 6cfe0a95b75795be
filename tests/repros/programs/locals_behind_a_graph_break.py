"""`locals()` and `eval()` were run in code that had dropped variables which nothing else read."""


def main(x, y, m, n, f, items, table, box):
    unread = n + 1
    found = locals()["unread"]
    return x * found, evaluated(x, n)


def evaluated(x, n):
    unread = n + 2
    return x * eval("unread")
