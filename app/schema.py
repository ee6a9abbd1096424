"""The database schema: all tables in one place, and the migrations that make them."""

from importlib import resources

from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData

import app.backbones.tables
import app.certificates.tables
import app.datasets.tables
import app.ledger.tables
import app.registry.tables
import app.storage.tables  # noqa: F401
from app.database import Base


def all_tables() -> MetaData:
    """Return the metadata of every table."""
    return Base.metadata


def migration_config(database_url: str) -> Config:
    """Return Alembic's configuration for one database."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.set_main_option("sqlalchemy.url", database_url.replace("%", "%%"))
    return config


def upgrade(database_url: str) -> None:
    """Bring a database to the newest schema."""
    command.upgrade(migration_config(database_url), "head")
