"""From a policy to a plan.

Where there is no plan, ``PlanError`` says what to change; ``ParameterError`` names a parameter that
is missing, unknown or out of its range.
"""
