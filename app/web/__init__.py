"""The operator's pages on ledger and queue: rendered on the server, usable without scripts.

It uses the services of the HTTP interface and makes no decisions of its own.
"""
