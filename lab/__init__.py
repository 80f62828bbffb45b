"""The embedded lab: a real control plane with simulated machines and controllers, for trying and testing the program."""
