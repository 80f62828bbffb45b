"""Machines that join, leave, or are away for a while: etcd, drains and replicas in the right order."""
