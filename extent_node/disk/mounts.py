"""Which mounting of a file system a folder is on (rule 12).

Page cache and mounting end together: whoever compares what is said here with what was said earlier in the same boot
knows whether bytes that were never synced can still be there.

    ext4:vdb:18522         the file system's own folder in /sys/fs, by its inode number, which the kernel gives to no
                           other one in this boot. It stands for the mounted file system itself, whatever namespace or
                           bind mount it is seen through, so that a container may be started again without an alarm
    mount:2147484029       a file system without such a folder: the kernel's unique id of the mount (Linux 6.8)
    mount-reused:42        an older kernel: the id in /proc/self/mountinfo, which the next mount may get again. A mount
                           that was made anew is then noticed only if another one came in between

The device's number alone says nothing: it is the same after a remount.

Invariants: two answers in one boot are equal only if the page cache was kept, as far as the kernel tells;
            a folder that is seen in another way than before (another namespace without /sys) counts as another mount.
"""

from __future__ import annotations

import ctypes
import os
import struct

_KINDS = ("ext4", "xfs", "f2fs")  # they have /sys/fs/<kind>/<device> while they are mounted

_AT_FDCWD = -100
_STATX_MNT_ID = 0x1000
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_BYTES = 256
_MASK_OFFSET, _MNT_ID_OFFSET = 0, 144

_libc = ctypes.CDLL(None, use_errno=True)


def mount_id(path: str) -> str:
    """OSError if the folder is not there."""
    device = os.stat(path).st_dev
    return _in_sys_fs(device) or _by_statx(path)


def _in_sys_fs(device: int) -> str:
    """Empty if this file system, or this view of the machine, has no such folder."""
    number = f"{os.major(device)}:{os.minor(device)}"
    name = os.path.basename(os.path.realpath(f"/sys/dev/block/{number}"))
    if name == number:  # not a link: no block device
        return ""
    for kind in _KINDS:
        try:
            return f"{kind}:{name}:{os.stat(f'/sys/fs/{kind}/{name}').st_ino}"
        except OSError:
            continue
    return ""


def _by_statx(path: str) -> str:
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    wanted = _STATX_MNT_ID | _STATX_MNT_ID_UNIQUE
    if _libc.statx(_AT_FDCWD, os.fsencode(path), 0, ctypes.c_uint(wanted), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    (mask,) = struct.unpack_from("=I", buffer, _MASK_OFFSET)
    (number,) = struct.unpack_from("=Q", buffer, _MNT_ID_OFFSET)
    return f"mount:{number}" if mask & _STATX_MNT_ID_UNIQUE else f"mount-reused:{number}"
