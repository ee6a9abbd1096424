"""``python -m app.cli`` is ``expunge``."""

from app.cli.main import main

main()
