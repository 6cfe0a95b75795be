"""Sizes of blocks and numbers of warps: a cost model, with no search.

What limits loops of this kind is memory, so the model asks how many bytes must be on their way at once. By Little's
law that is latency times bandwidth: an H200 has 4.8 TB/s and answers after about 0.7 us, so 3.4 MB are under way, 25 KB
for each of 132 multiprocessors. 2048 resident threads with one load of 16 bytes each make 32 KB. Hence

- a thread has 16 bytes of the narrowest tensor (`_THREAD_BYTES`), which is also the widest load that there is, twice
  that where a kernel reads one tensor only;
- four warps make a program: 16 of them fill a multiprocessor, so that one that starts or ends leaves no gap; eight
  where rows are folded, with 16 elements of each thread's own: more of them wait for one another at each fold;
- blocks shrink when there are too few to give each multiprocessor two.

A row that a reduction folds is held in registers ("whole") where the values that live from one phase to the next take
at most a quarter of a multiprocessor's registers: then it is read once, and a second program can run beside. Otherwise
programs walk it by blocks. Rows whose neighbours in memory are other rows (a sum of columns) are tiles of at least
128 bytes, four sectors of a cache line, across. A reduction is split over programs when they are too few to fill the
card and one would take longer than the second launch costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from firebrick.targets.cuda.facts import CardFacts

_THREAD_BYTES = 16
_LAUNCH, _FOLLOWS = 4e-6, 6e-7
"""Seconds that a launch costs, its start and its end counted, and one that starts while another still runs."""
_SECTORS = 128
"""Bytes of neighbours that a warp should read together."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an iteration moves: bytes of the narrowest and the widest element, and how many tensors it reads."""

    narrow: int
    wide: int
    reads: int


def power_above(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def power_below(n: int) -> int:
    """The greatest power of two that is at most `n`, 1 for less."""
    return 1 << max(n, 1).bit_length() - 1


def pointwise_block(count: int, traffic: Traffic, card: CardFacts) -> tuple[int, int]:
    """Elements and warps of a program, for `count` independent iterations."""
    each = max(1, min(8, _THREAD_BYTES // traffic.narrow)) * (2 if traffic.reads < 2 else 1)
    block = min(4 * card.warp * each, power_above(count))
    least = min(card.warp * 4, power_above(count))
    while block > least and count // block < 2 * card.multiprocessors:
        block //= 2
    return block, max(1, min(4, block // card.warp))


def transposed_block(rows: int, columns: int, traffic: Traffic) -> tuple[int, int, int]:
    """Rows, columns and warps of a tile that one tensor reads along rows and another along columns.

    A side has 64 elements of at most two bytes, or 32: 128 bytes each way, and 4 KB of shared memory to turn it.
    """
    side = 64 if traffic.wide <= 2 else 32
    high, wide = min(side, power_above(rows)), min(side, power_above(columns))
    # A short side leaves room for a longer one.
    if high < side:
        wide = min(power_above(columns), side * side // high, 256)
    elif wide < side:
        high = min(power_above(rows), side * side // wide, 256)
    return high, wide, max(1, min(4, high * wide // 256))


def across(traffic: Traffic, rows: int, length: int, card: CardFacts) -> int:
    """Rows of a tile whose neighbours in memory are other rows: fewer where a card would be idle though each row were
    done in slices of 64, down to one load of a thread."""
    high = min(max(1, _SECTORS // traffic.wide), power_above(rows))
    while high * traffic.wide > _THREAD_BYTES and rows * -(-length // 64) < 2 * card.multiprocessors * high:
        high //= 2
    return high


def row_tile(
    rows: int, length: int, live: int, along: bool, traffic: Traffic, card: CardFacts
) -> tuple[int, int, bool, int]:
    """Rows, elements of each, whether those are whole rows, and warps of a program that folds rows.

    live: 32-bit registers for each element of the row that must stay from phase to phase. along: elements of a row
    are neighbours in memory, not rows.
    """
    padded = power_above(length)
    room = card.registers // 4 // max(1, live)
    if along:
        whole = padded <= min(room, 16384)
        block = padded if whole else min(padded, 4096)
        high = 1
        # Short rows: as many as are worth a program's start, unless multiprocessors would be idle.
        while block * high < 2048 and rows // (2 * high) >= 2 * card.multiprocessors:
            high *= 2
        high = min(high, power_above(rows))
    else:
        high = across(traffic, rows, length, card)
        whole = padded * high <= min(room, 8192)
        block = padded if whole else max(1, min(padded, 4096 // high))
    # Elements of a thread: on a card that is not full all that counts is when the last one is done.
    idle = rows < 4 * card.multiprocessors * high
    each = (16 if along else 8) // (2 if idle else 1)
    most = 16 if along and (idle or block > 8192) else 8
    return high, block, whole, power_below(max(1, min(most, block * high // (card.warp * each))))


def slices(programs: int, length: int, step: int, card: CardFacts) -> int:
    """In how many parts the rows of a reduction can be done, each of about `step` elements, to fill the card."""
    if programs >= card.multiprocessors:
        return 1
    return max(1, min(4 * card.multiprocessors // programs, -(-length // step), 1024))


def pays(nbytes: int, along: bool, more: int, card: CardFacts) -> bool:
    """Whether slices are worth so many more launches than the one of programs that read `nbytes` each, with a
    multiprocessor's share of the bandwidth. A program along its rows reads them at once, and waits less for them."""
    return nbytes * card.multiprocessors >= card.bandwidth * (2 * _LAUNCH if along else more * _FOLLOWS)
