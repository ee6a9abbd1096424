"""Blobs: large objects, stored encrypted and shredded by destroying their key.

Everything raises ``GoneError`` for what was given up or shredded, ``CorruptObjectError`` for what
is not what was stored, ``ObjectStoreError`` where the objects' store fails, ``KeyStoreError`` where
the keys' store does, or a key cannot be unwrapped, and ``KeyServiceError`` where the service that
wraps them does not answer, or refuses.
"""
