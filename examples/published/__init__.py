"""Pieces that the MNIST scripts beside this folder share."""
