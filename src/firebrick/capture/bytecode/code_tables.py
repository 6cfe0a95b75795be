"""The two compact tables of a code object: source positions and exception handlers.

Both are written as CPython's `Objects/locations.md` and `Objects/exception_handling_notes.txt` describe them;
the three supported versions share the formats.
"""

from __future__ import annotations

from collections.abc import Iterable

Position = tuple[int | None, int | None, int | None, int | None]
"""Line, end line, column, end column, as `co_positions` gives them: columns count bytes from 0."""

NOWHERE: Position = (None, None, None, None)

_SHORT_COLUMNS, _ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 80, 10, 13, 14, 15
_UNITS_PER_ENTRY = 8


def encode_exceptions(entries: Iterable[tuple[int, int, int, int, bool]]) -> bytes:
    """`co_exceptiontable` of entries that are in order and don't overlap.

    An entry: the range of code units [begin, end) whose exceptions go to a target, the target, how deep the stack is
    there, and whether the place is pushed.
    """
    out = bytearray()
    for begin, end, target, depth, lasti in entries:
        start = len(out)
        for number in (begin, end - begin, target, depth << 1 | lasti):
            shift = 24
            while shift and not number >> shift:
                shift -= 6
            for s in range(shift, 0, -6):
                out.append(number >> s & 0x3F | 0x40)
            out.append(number & 0x3F)
        out[start] |= 0x80
    return bytes(out)


def _varint(out: bytearray, value: int) -> None:
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)


def _signed(out: bytearray, value: int) -> None:
    _varint(out, -value << 1 | 1 if value < 0 else value << 1)


def encode_positions(first_line: int, runs: Iterable[tuple[Position, int]]) -> bytes:
    """`co_linetable` of (position, code units) runs."""
    out, line = bytearray(), first_line
    for position, total in runs:
        while total > 0:
            units = min(total, _UNITS_PER_ENTRY)
            total -= units
            line = _encode_position(out, position, units - 1, line)
    return bytes(out)


def _encode_position(out: bytearray, position: Position, units: int, previous: int) -> int:
    line, end_line, column, end_column = position
    head = 0x80 | units
    if line is None:
        out.append(head | _NONE << 3)
        return previous
    delta = line - previous
    if column is None or end_column is None or end_line is None:
        if end_line is None or end_line == line:
            out.append(head | _NO_COLUMNS << 3)
            _signed(out, delta)
            return line
        # Only the end line is known: the long form writes absent columns as 0.
        column, end_column = -1, -1
    if end_line == line and 0 <= column < 128 and 0 <= end_column < 128:
        width = end_column - column
        if delta == 0 and column < _SHORT_COLUMNS and 0 <= width < 16:
            out.append(head | (column >> 3) << 3)
            out.append((column & 7) << 4 | width)
            return line
        if 0 <= delta < 3:
            out.append(head | (_ONE_LINE + delta) << 3)
            out.append(column)
            out.append(end_column)
            return line
    out.append(head | _LONG << 3)
    _signed(out, delta)
    _varint(out, end_line - line)
    _varint(out, column + 1)
    _varint(out, end_column + 1)
    return line
