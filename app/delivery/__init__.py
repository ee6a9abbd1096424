"""What leaves the service: callbacks, and versions at their publishing targets."""
