"""Permissions of callers."""

from enum import StrEnum


class Scope(StrEnum):
    """A permission of a key or token. ``admin`` includes all others."""

    FORGET_WRITE = "forget:write"
    FORGET_READ = "forget:read"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"
    DATA_WRITE = "data:write"
    LOG_READ = "log:read"
    ADMIN = "admin"
