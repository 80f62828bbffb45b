"""Scenarios told in one process: the product's own program and stages, an engine in memory, simulated machines and cluster."""
