"""One run on several devices: processes, what they say to each other, and how work is divided."""
