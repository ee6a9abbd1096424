"""What a caller may be allowed to do."""

from enum import StrEnum


class Scope(StrEnum):
    """What a key or token allows. ``admin`` allows everything."""

    FORGET_WRITE = "forget:write"
    FORGET_READ = "forget:read"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"
    DATA_WRITE = "data:write"
    LOG_READ = "log:read"
    ADMIN = "admin"
