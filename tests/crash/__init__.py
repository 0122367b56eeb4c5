"""Servers, workers and databases as real processes that die by kill -9, at every named point: nothing is lost, nothing twice."""
