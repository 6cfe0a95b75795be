"""Measurements that are prepared side by side run one after another."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="pins processes to cores")
def test_commands_measure_one_after_another_when_all_are_prepared(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
            import sys, time
            from bench import turns
            time.sleep(float(sys.argv[1]))
            print("| prepared", time.monotonic(), "|")
            turns.wait()
            print("| begins", time.monotonic(), "|")
            time.sleep(0.2)
            print("| ends", time.monotonic(), "|")
            print("a line that is no result")
        """)
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "bench.together", "--cores", "1", "--patience", "8", "--limit", "40"]
        + ["slow 0", "slow 1", "slow 100", "--last", "slow 0.1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""},
    )
    times = [(line.split()[1], float(line.split()[2])) for line in done.stdout.splitlines() if line.startswith("|")]
    assert [name for name, _ in times] == ["prepared", "begins", "ends"] * 3
    prepared, begun, ended = (times[k::3] for k in range(3))
    assert max(t for _, t in prepared[:2]) <= begun[0][1] < ended[0][1] <= begun[1][1] < ended[1][1] <= prepared[2][1]
    assert "left out: slow 100" in done.stdout
    assert "no result" not in done.stdout
