"""Traces of forget requests, from the call to the publication, across all processes.

A process that did something hands its spans to one that sends them (``handing``, ``sender``); it
opens no connection to anywhere else, starts no thread and loads no library for it.
"""
