"""Public backbones: their stored weights, and the checks on their use.

Everything raises ``NotFoundError`` for a backbone that does not exist, ``GoneError`` for an
archived one, ``ConflictError`` where it has no weights, or has them already, and
``InvalidInputError`` for a definition or a use that does not fit.
"""
