"""What Expunge decides and promises. Nothing here imports torch or the workers."""
