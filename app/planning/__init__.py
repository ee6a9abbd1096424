"""From a policy to a plan."""
