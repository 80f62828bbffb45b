"""Machine-config documents as pure functions per Talos minor version."""
