"""``python -m distop.cli``."""

from distop.cli.main import main

main()
