"""What `expunge` commands start as processes of their own, because they need torch."""
