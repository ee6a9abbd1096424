"""A storm: callers, faults and checks over a whole service, for minutes; ``make storm`` runs it.

What happens is drawn from a seed that is printed; when it happens depends on the machine.
"""
