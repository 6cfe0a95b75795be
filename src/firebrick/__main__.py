"""`python -m firebrick`: the commands, where the script is not on the path."""

from firebrick.tools.cli import main

main()
