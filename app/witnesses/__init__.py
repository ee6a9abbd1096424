"""Witnesses of the log: asking them for cosignatures, and being one (C2SP tlog-witness)."""
