"""The table of operators: what passed, how, and what did not, with reasons."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from tests.ops.errors import TITLE, section_of

if TYPE_CHECKING:
    from pathlib import Path

Rows = dict[tuple[str, str], dict]
COUNTS = ("cases", "loops", "called", "left", "failed", "wrong")


def read_rows(store: Path) -> Rows:
    """The row of each operator and dtype: the last run from its first sample on, and what was added to that."""
    rows: Rows = {}
    if store.exists():
        for line in store.read_text().splitlines():
            row = json.loads(line)
            key = row["op"], row["dtype"]
            rows[key] = row if row["first"] == 0 else added(rows[key], row)
    return rows


def added(row: dict, more: dict) -> dict:
    """A row with what a later run found about further samples."""
    sums = {k: row[k] + more[k] for k in (*COUNTS, "seconds")}
    details = {k: [*found, *more["details"][k]] for k, found in row["details"].items()}
    calls = sorted({*row["calls"], *more["calls"]})
    return row | sums | {"details": details, "calls": calls, "end": max(row["end"], more["end"])}


def done(row: dict | None) -> int:
    """How many samples a row took."""
    return 0 if row is None else row["end"]


def coverage(rows: Rows) -> str:
    """How much of the database the rows took, in a sentence."""
    whole = sum(done(r) == r["available"] for r in rows.values())
    text = f"{whole} of {len(rows)} pairs of an operator and a dtype ran with all of their samples"
    most = min((done(r) for r in rows.values() if done(r) < r["available"]), default=None)
    return (
        f"{text}." if most is None else f"{text}, the others, which have more, with the first {most} or more of them."
    )


def totals(rows: list[dict]) -> dict[str, int]:
    """Sums of the counts."""
    return {k: sum(r[k] for r in rows) for k in COUNTS}


def passed(t: dict[str, int]) -> int:
    """Cases with eager's result."""
    return t["loops"] + t["called"] + t["left"]


def summary(rows: Rows) -> str:
    """What to print: the totals, then every failure and difference in short."""
    lines = []
    for dtype in [*dict.fromkeys(d for _, d in rows), "all"]:
        t = totals([r for r in rows.values() if dtype in ("all", r["dtype"])])
        share = 100 * passed(t) / max(t["cases"], 1)
        lines.append(f"{dtype:9} {share:6.2f} % passed  " + "  ".join(f"{k} {t[k]}" for k in COUNTS))
    for kind in ("wrong", "failed"):
        for row in rows.values():
            for call, why in row["details"][kind][:3]:
                lines.append(f"{kind} {row['op']} {row['dtype']} {call}: {why}")
    return "\n".join(lines)


def how(rows: list[dict]) -> str:
    """How an operator is done, over all of its dtypes."""
    t = totals(rows)
    parts = [word for word in ("loops", "called", "left") if t[word]]
    return " + ".join(parts) or "none"


LAYOUTS = "\n## Layouts of arguments\n"


def write_layouts(rows: Rows, path: Path) -> None:
    """The table of layouts as the last section of a Markdown file."""
    kinds: Counter[str] = Counter()
    for row in rows.values():
        kinds.update(row["kinds"])
    layouts, contexts = (list(dict.fromkeys(kind.split(", ")[k] for kind in kinds)) for k in (0, 1))
    t, samples = totals([*rows.values()]), max(done(r) for r in rows.values())
    dtypes = ", ".join(dict.fromkeys(d for _, d in rows))
    lines = [
        LAYOUTS.strip(),
        "",
        "Every tensor argument lies in memory in another way: the first dimension innermost (permuted), one row for all",
        "(expanded), the second dimension innermost (channels last), three elements into its memory (offset), with the negative",
        "bit, with the conjugate bit (real numbers as the imaginary part of a conjugate). The operator runs alone, behind a",
        "linear layer, before a residual (`x + op(x)`), and between the two (`x + linear(op(x))`), in one graph. What passes is",
        "as above, strides included; written by `make ops-layouts`.",
        "",
        f"{len(rows)} pairs of an operator and a dtype ({dtypes}), the first {samples} samples of each: {t['cases']} cases, "
        f"{t['wrong']} wrong, {t['failed']} failed, {t['left']} left to eager.",
        "",
        f"| cases | {' | '.join(contexts)} |",
        f"|---|{'---|' * len(contexts)}",
        *(f"| {layout} | {' | '.join(str(kinds[f'{layout}, {c}']) for c in contexts)} |" for layout in layouts),
        *_bad(rows, sorted({n for n, _ in rows}), "###"),
    ]
    before = path.read_text().partition(LAYOUTS)[0].rstrip() + "\n\n" if path.exists() else ""
    path.write_text(before + "\n".join(lines) + "\n")


def _bad(rows: Rows, names: list[str], level: str) -> list[str]:
    """Failures and differences as Markdown."""
    lines = []
    for kind in ("failed", "wrong"):
        bad = [(n, r, d) for n in names for (m, _), r in rows.items() if m == n for d in r["details"][kind][:1]]
        if bad:
            lines += [
                "",
                f"{level} {kind.capitalize()}",
                "",
                "| operator | dtype | cases | first |",
                "|---|---|---|---|",
            ]
            lines += [f"| {n} | {r['dtype']} | {r[kind]} | {cell(d[0])}: {cell(d[1])} |" for n, r, d in bad]
    return lines


def write_table(rows: Rows, path: Path) -> None:
    """The table as Markdown; a section on layouts that is there stays."""
    names = sorted({n for n, _ in rows})
    by_name = {n: [r for (m, _), r in rows.items() if m == n] for n in names}
    lines = [
        "# Operators",
        "",
        "torch's operator database (`torch.testing._internal`), forward, on the CPU; written by `make ops`.",
        "A case is a sample of the database or a variant of it: in place, strided, broadcast, empty or aliased inputs.",
        "It passed if the results, their strides, the arguments afterwards and what shares memory are as in eager PyTorch; floating-point",
        "results may have 1.1 times eager's error against float64 and a relative 1e-6 (half types: four roundings).",
        "",
        coverage(rows),
        "",
        "- **loops**: only loop kernels of ours and views, **called**: library kernels too, in the same graph.",
        "- **left**: no graph can hold it (a size that depends on data, a Python number as result): eager runs it.",
        "",
        "| dtype | operators | cases | passed | loops | called | left | failed | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dtype in [*dict.fromkeys(d for _, d in rows), "all"]:
        chosen = [r for r in rows.values() if dtype in ("all", r["dtype"])]
        t = totals(chosen)
        share = 100 * passed(t) / max(t["cases"], 1)
        count = len({r["op"] for r in chosen})
        lines.append(
            f"| {dtype} | {count} | {t['cases']} | {share:.2f} % | {t['loops']} | {t['called']} | {t['left']} | {t['failed']} | {t['wrong']} |"
        )
    for title, wanted in (
        ("Lowered to loops", "loops"),
        ("Loops for some dtypes or samples, library kernels for others", "loops + called"),
        ("Called through", "called"),
    ):
        found = [n for n in names if how(by_name[n]).removesuffix(" + left") == wanted]
        lines += ["", f"## {title} ({len(found)})", "", ", ".join(found)]
    found = [n for n in names if how(by_name[n]) == "left"]
    lines += ["", f"## Left to eager ({len(found)})", "", "| operator | reason |", "|---|---|"]
    for n in found:
        reasons = Counter(why for r in by_name[n] for _, why in r["details"]["left"])
        lines.append(f"| {n} | {cell(reasons.most_common(1)[0][0])} |")
    lines += _bad(rows, names, "##")
    layouts = "".join(path.read_text().partition(LAYOUTS)[1:]) if path.exists() else ""
    errors = "" if TITLE in layouts else section_of(path)
    path.write_text("\n".join(lines) + "\n" + (f"\n{errors}\n" if errors else "") + layouts)


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return text.replace("|", "/").replace("\n", " ")[:160]
