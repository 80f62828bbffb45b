"""Stand-ins for official provider plugins that cannot be installed everywhere."""
