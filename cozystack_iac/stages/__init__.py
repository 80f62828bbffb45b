"""The stages of the install: dynamic providers, one per file, named after it. What they do is told in their own rooms."""

from collections.abc import Mapping

from cozystack_iac import record
from cozystack_iac.stages import base
from cozystack_iac.waiting import StageFailed


async def _begun(kubeconfig: str, stage: str) -> None:
    await record.begin(kubeconfig, stage)


async def _recorded(kubeconfig: str, stage: str, error: Exception) -> Mapping[str, str]:
    # Texts of what nobody foresaw may hold anything, so only its kind is written down.
    await record.fail(kubeconfig, stage, error.what if isinstance(error, StageFailed) else _unexpected(error))
    return {}


async def _bundled(kubeconfig: str, stage: str, error: Exception) -> Mapping[str, str]:
    """A support bundle beside the project; the message names the file."""
    from cozystack_iac.diagnosis import bundle  # only a failure needs it, and it is half a second to load

    about = bundle.subjects(error.details) if isinstance(error, StageFailed) else ()
    text = str(error) if isinstance(error, StageFailed) else _unexpected(error)
    return await bundle.after_failure(kubeconfig, stage, text, about)


def _unexpected(error: Exception) -> str:
    return f"unexpected: {type(error).__name__}"


base.on_begin.append(_begun)
base.on_failure += [_recorded, _bundled]
