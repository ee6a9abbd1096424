"""Audits of certificates from outside: paired canaries, and what a release tells of them."""
