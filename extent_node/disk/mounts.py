"""The identity of the mount that a folder is on (protocol rule 12).

The page cache ends with the mount. So if a folder's mount id is the same as earlier in the same boot, bytes that were
never synced may still be there.

    ext4:vdb:18522         the file system's own folder in /sys/fs, by its inode number, which the kernel gives to no
                           other folder in this boot. It identifies the mounted file system itself, through any
                           namespace or bind mount, so a container can be restarted without an alarm
    mount:2147484029       a file system without such a folder: the kernel's unique id of the mount (Linux 6.8)
    mount-reused:42        an older kernel: the id in /proc/self/mountinfo, which the next mount may get again. A
                           remount is then noticed only if another mount was made in between

The device's number proves nothing: it is the same after a remount.

Invariants: two ids in one boot are equal only if the page cache was kept, as far as the kernel reports it;
            a folder seen in another way than before (another namespace without /sys) counts as another mount.
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
    """The id of the folder's mount. OSError if the folder does not exist."""
    device = os.stat(path).st_dev
    return _in_sys_fs(device) or _by_statx(path)


def _in_sys_fs(device: int) -> str:
    """Empty if this file system has no such folder, or none is visible here."""
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
