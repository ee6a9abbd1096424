"""Where served versions go: a registry, a bucket, a folder; and from where they go away again."""
