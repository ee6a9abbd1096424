"""Runs of ensembles: the members concerned are trained anew, by one worker or by several."""
