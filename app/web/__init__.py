"""The operator's page: what the ledger and the queue hold, rendered here, usable without scripts.

It stands above the HTTP interface and shares its services; it decides nothing of its own.
"""
