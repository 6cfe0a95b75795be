"""The commands that pages and scripts give for the benchmarks can be run from the root of the repository."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    p for folder in ("bench", "docs", "examples") for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py")
]


def test_scripts_that_import_others_are_run_as_modules():
    commands = {name for page in PAGES for name in re.findall(r"python bench/(\w+)\.py", page.read_text())}
    texts = {name: (ROOT / "bench" / f"{name}.py").read_text() for name in commands}
    assert not [name for name, text in texts.items() if re.search(r"^(from|import) bench\b", text, re.MULTILINE)]
