"""Cozystack itself: API balancer on generic clusters, installer, platform package, root tenant."""
