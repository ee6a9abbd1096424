"""Certificates as ledger facts: what they cover, when they are issued, and their proofs."""
