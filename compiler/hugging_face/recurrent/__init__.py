"""Recurrent layers over any number of tokens."""
