"""ApplyConfiguration in all its modes, as each minor answers in maintenance and on a running machine."""

from __future__ import annotations

from dataclasses import dataclass

from grpclib import Status

from cozystack_iac.talos.api import machine_pb2 as api
from lab.machines.call import Call, refuse
from lab.machines.changes import diff, reboot_reason
from lab.machines.config import AppliedConfig, Undecodable, decode
from lab.machines.validation import check_runtime, validate

Mode = api.ApplyConfigurationRequest
TRY_DEFAULT_S = 60  # server default of try_mode_timeout

_DETAILS = {
    Mode.REBOOT: "Applied configuration with a reboot",
    Mode.NO_REBOOT: "Applied configuration without a reboot",
    Mode.STAGED: "Staged configuration to be applied after the next reboot",
    Mode.TRY: "Applied configuration without a reboot",
}


@dataclass(frozen=True)
class _Plan:
    mode: Mode.Mode
    details: str


class ApplyCalls:
    async def ApplyConfiguration(
        self, call: Call, request: api.ApplyConfigurationRequest
    ) -> api.ApplyConfigurationResponse:
        node = call.node
        _supported(call, request.mode)
        if node.apply_lock.locked() and not _old_maintenance(call):
            refuse(Status.FAILED_PRECONDITION, "another apply configuration is already in progress")
        async with node.apply_lock:
            if node.rebooting and (call.maintenance or node.state.minor <= 13):
                # the recorded text breaks off behind the comma; the end is ours
                refuse(
                    Status.FAILED_PRECONDITION, "configuration was already applied and node is rebooting, please wait"
                )
            await node.world.clock.sleep(node.world.scenario.delays.apply)
            config = _decoded(call, request.data)
            warnings = _judged(call, config)
            plan = _plan(call, request, config)
            if request.dry_run:
                return _reply(_dry_run(call, plan, config))
            _take_over(call, request, config, plan)
        if _old_maintenance(call):
            return _reply(api.ApplyConfiguration(warnings=warnings))
        return _reply(api.ApplyConfiguration(warnings=warnings, mode=plan.mode, mode_details=plan.details))


def _reply(message: api.ApplyConfiguration) -> api.ApplyConfigurationResponse:
    return api.ApplyConfigurationResponse(messages=[message])


def _old_maintenance(call: Call) -> bool:
    return call.maintenance and call.node.state.minor <= 12


def _supported(call: Call, mode: Mode.Mode) -> None:
    if _old_maintenance(call) and mode in (Mode.NO_REBOOT, Mode.STAGED):
        name = Mode.Mode.Name(mode).lower().replace("_", "-")
        refuse(Status.UNIMPLEMENTED, f"apply configuration --mode='{name}' is not supported in maintenance mode")
    if not call.maintenance and call.node.state.minor >= 14 and mode == Mode.REBOOT:
        refuse(
            Status.UNIMPLEMENTED,
            "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead",
        )


def _decoded(call: Call, data: bytes) -> AppliedConfig:
    try:
        config = decode(data.decode(), call.node.state.minor)
    except (Undecodable, UnicodeDecodeError) as error:
        if _old_maintenance(call):
            refuse(Status.UNKNOWN, f"failed to parse config: {error}")
        refuse(Status.INVALID_ARGUMENT, str(error))
    if config.main is None and not call.maintenance:
        refuse(
            Status.INVALID_ARGUMENT,
            "the applied machine configuration doesn't contain v1alpha1 config, "
            "did you mean to patch the machine config instead?",
        )
    return config


def _judged(call: Call, config: AppliedConfig) -> tuple[str, ...]:
    """Warnings of a config that passes."""
    state, old = call.node.state, _old_maintenance(call)
    judgement = validate(config, installed=state.installed)
    if not judgement.ok:
        refuse(Status.INVALID_ARGUMENT, ("configuration validation failed: " if old else "") + judgement.text)
    disks = [disk.spec for disk in state.disks.values()]
    runtime = check_runtime(config, installed=state.installed, talos=state.talos, disks=disks)
    if not runtime.ok:
        refuse(Status.INVALID_ARGUMENT, ("runtime configuration validation failed: " if old else "") + runtime.text)
    return judgement.warnings


def _plan(call: Call, request: api.ApplyConfigurationRequest, config: AppliedConfig) -> _Plan:
    """The mode that really happens."""
    mode, reason = request.mode, None
    if call.maintenance:
        mode = Mode.NO_REBOOT if mode in (Mode.REBOOT, Mode.AUTO) else mode
    elif call.node.state.minor >= 14:
        mode = Mode.NO_REBOOT if mode == Mode.AUTO else mode
    elif call.node.state.config is not None:
        reason = reboot_reason(call.node.state.config, config)
        if mode in (Mode.NO_REBOOT, Mode.TRY) and reason is not None:
            refuse(Status.INVALID_ARGUMENT, reason)
        if mode == Mode.AUTO:
            mode = Mode.REBOOT if reason is not None else Mode.NO_REBOOT
        reason = reason if request.mode == Mode.AUTO else None
    details = _DETAILS[mode] + (f": {reason}" if reason is not None else "")
    if mode == Mode.TRY:
        minutes, seconds = divmod(_try_seconds(request), 60)
        details += (
            f"\nThe config is applied in 'try' mode and will be automatically reverted back in {minutes}m{seconds}s"
        )
    return _Plan(mode, details)


def _try_seconds(request: api.ApplyConfigurationRequest) -> int:
    return request.try_mode_timeout.seconds or TRY_DEFAULT_S


def _dry_run(call: Call, plan: _Plan, config: AppliedConfig) -> api.ApplyConfiguration:
    """Never carries warnings."""
    if _old_maintenance(call):
        return api.ApplyConfiguration(
            mode_details="Dry run summary:\nNode is running in maintenance mode and does not have a config yet."
        )
    changes = diff(call.node.state.config, config)
    details = f"Dry run summary:\n{plan.details} (skipped in dry-run).\nConfig diff:\n\n{changes}"
    return api.ApplyConfiguration(mode=plan.mode, mode_details=details)


def _take_over(call: Call, request: api.ApplyConfigurationRequest, config: AppliedConfig, plan: _Plan) -> None:
    node = call.node
    if call.maintenance and plan.mode == Mode.STAGED:
        node.stage_first(config)
    elif call.maintenance:
        node.accept_first(config)
    elif plan.mode == Mode.TRY:
        node.try_for(config, _try_seconds(request))
    else:
        node.accept(config, Mode.Mode.Name(plan.mode))
