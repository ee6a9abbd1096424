"""What a lineage's recorded history guarantees, for losses whose drift can be tracked."""
