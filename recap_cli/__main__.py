"""`python -m recap_cli` is `recap`."""

from recap_cli.app import main

main()
