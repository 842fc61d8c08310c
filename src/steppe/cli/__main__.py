"""`python -m steppe.cli`."""

from steppe.cli import main

main()
