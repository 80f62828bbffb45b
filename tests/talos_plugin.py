"""Resources of the talos stand-in as the engine names and sees them."""

from collections.abc import Mapping
from typing import Any

from pulumi.provider.experimental.property_value import PropertyValue

URN = "urn:pulumi:dev::cozystack::cozystack:talos:TalosMachineConfigs${}::name"


def urn_of(token: str) -> str:
    return URN.format(token)


def shape_of(value: PropertyValue) -> Any:
    """Names and secret marks, without the values."""
    if isinstance(value.value, Mapping):
        return {key: shape_of(item) for key, item in value.value.items()}
    return "secret" if value.is_secret else "plain"
