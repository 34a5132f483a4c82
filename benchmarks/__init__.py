"""Measurements that the book draws or quotes: what models learn, and how fast the code is."""
