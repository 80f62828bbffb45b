"""A stand-in for the ``command`` provider plugin: local commands, and remote ones through the ``ssh`` program."""
