"""The part of the Talos machine API we speak, as protobuf messages and grpclib stubs.

The `.proto` files are our own and hold only what is used; everything else a machine sends stays in the unknown fields.
`python -m cozystack_iac.talos.api.generate` rewrites the generated modules.
"""
