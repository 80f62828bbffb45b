"""A stand-in for the ``talos`` provider plugin: same tokens, property names and secretness, real certificates."""
