"""What operators can observe: metrics, heartbeats, readiness."""
