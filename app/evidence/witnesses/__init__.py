"""Asks the log's witnesses for cosignatures (C2SP tlog-witness)."""
