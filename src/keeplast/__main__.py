"""``python -m keeplast``."""

from keeplast.cli.main import main

main()
