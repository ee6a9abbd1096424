"""Files of the data directory that commands read where no server's packages are installed."""

from pathlib import Path

from app.settings import Settings


def trusted_keys_file(settings: Settings) -> Path:
    """Where ``expunge init`` writes what verifiers should trust."""
    return settings.data_dir / "keys" / "trusted-keys.json"


def admin_key_file(settings: Settings) -> Path:
    """The file of the first API key, written by ``expunge init``."""
    return settings.data_dir / "keys" / "admin-api-key"
