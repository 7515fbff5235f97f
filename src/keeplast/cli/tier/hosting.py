"""What makes a process of ``keeplast tier run`` a host, checked before anything is opened."""

from __future__ import annotations

from keeplast.cli.tier.options import TierRunOptions
from keeplast.errors import InvalidError
from keeplast.host.host_directory import host_directory
from keeplast.host.leased_host import LEASE_MS_DEFAULT, check_lease_ms
from keeplast.log.files import LocalFiles
from keeplast.model.host_role import HostRole
from keeplast.service.host_work import HostSettings


def host_settings(options: TierRunOptions) -> HostSettings | None:
    """Return what this process is to be as a host, None when it is to be none.

    InvalidError for options that contradict, RefusedError for a directory that is a broker's or in
    use.
    """
    asked = options.host
    if asked.host_dir is None:
        for name, given in (("--role", asked.role), ("--lease-ms", asked.lease_ms)):
            if given is not None:
                raise InvalidError(f"{name} is about hosts; name their directory (--host-dir)")
        return None
    if options.data_dir is not None:
        raise InvalidError(
            "--data-dir copies a broker's directory, and --host-dir is this process's own; give "
            f"one of them. data_dir={options.data_dir} host_dir={asked.host_dir}"
        )
    if options.work.shape is not None:
        raise InvalidError(
            "--shape is not for hosts: their rounds read what is on their own disk, a task a "
            f"partition; leave it out. shape={options.work.shape}"
        )
    lease_ms = LEASE_MS_DEFAULT if asked.lease_ms is None else asked.lease_ms
    check_lease_ms(lease_ms)
    with host_directory(asked.host_dir, LocalFiles()):
        pass
    return HostSettings(asked.host_dir, asked.role or HostRole.AUTO, lease_ms)
