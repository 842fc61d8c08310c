"""`python -m steppe`."""

from steppe.cli import main

main()
