"""Work that this worker holds while it gives signs of life: attempts, outages, progress."""
