"""`python -m tertium` is the command `tertium`."""

from tertium.cli import main

main()
