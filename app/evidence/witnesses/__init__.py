"""Witnesses of the log: requesting cosignatures, and a witness server (C2SP tlog-witness)."""
