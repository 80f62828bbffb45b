"""Kubernetes access: a small client on an explicit kubeconfig, kubeconfig checks, node readiness."""
