"""What an operator can see of the service: figures, signs of life, readiness."""
