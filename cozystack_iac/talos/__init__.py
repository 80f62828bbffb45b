"""Talos Linux: API client, machine-config documents, stages."""
