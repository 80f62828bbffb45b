"""Cozystack on bare machines, as a Pulumi program."""
