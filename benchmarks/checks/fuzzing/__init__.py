"""Readers fed with spoilt files.

``samples`` is what is fed, ``mutate`` how it is spoilt, ``readers`` who reads it, ``watch`` what is watched.
"""
