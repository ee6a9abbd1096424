"""Merkle trees of RFC 6962 and proofs in them."""
