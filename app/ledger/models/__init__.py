"""A model's definition, its policy, and which version of it may be served.

Everything raises ``NotFoundError`` for a name that does not exist, ``GoneError`` for what was
archived, ``ConflictError`` where the state of things does not allow it now, ``InvalidInputError``
for a definition that contradicts itself or its dataset, and ``PlanError``, ``ParameterError`` or
``CalibrationError`` where no run could meet the policy. The messages say why and what to do.
"""
