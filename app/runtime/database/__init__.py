"""The database: its engine, prepared statements, and calls that share a transaction."""

from app.runtime.database.engine import IDLE_IN_TRANSACTION_S, Base, Database, is_away

__all__ = ["IDLE_IN_TRANSACTION_S", "Base", "Database", "is_away"]
