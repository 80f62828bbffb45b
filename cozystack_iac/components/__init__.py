"""The install as Pulumi components. They declare children and their order; decisions about the outside world are the stages'."""
