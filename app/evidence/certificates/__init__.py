"""Statements, their signatures, and offline verification.

What reads or checks evidence raises ``VerificationError`` with the step that failed, and what reads
notes ``NoteError``.
"""
