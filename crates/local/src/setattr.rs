//! Setting attributes, in the order size, owner, mode, access control lists, times.

use std::sync::Arc;

use dhow_sys::open::Time;
use dhow_sys::{Errno, io, node};
use dhow_vfs::{Cred, ErrorKind, FileKind, OpenFile, Result, SetAttr, SetTime};

use crate::error::sys;
use crate::inner::Inner;
use crate::inode::{Changing, Inode};
use crate::names::DirChanging;
use crate::rights::W;

fn when(time: Option<SetTime>) -> node::SetTime {
    match time {
        None => node::SetTime::Omit,
        Some(SetTime::Now) => node::SetTime::Now,
        Some(SetTime::To(t)) => node::SetTime::To(Time { sec: t.secs, nsec: t.nanos }),
    }
}

impl Inner {
    /// Sets attributes as the user; returns what was applied. An error tells what was applied before it.
    pub(crate) fn setattr(
        self: &Arc<Self>,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        set: &SetAttr,
    ) -> Result<SetAttr> {
        let _changing = (inode.kind == FileKind::Directory).then(|| DirChanging::begin(inode));
        let mut applied = SetAttr::default();
        match self.set_in_order(user, inode, open, set, &mut applied) {
            Ok(()) => Ok(applied),
            Err(e) => Err(e.after(applied)),
        }
    }

    fn set_in_order(
        self: &Arc<Self>,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        set: &SetAttr,
        applied: &mut SetAttr,
    ) -> Result<()> {
        let stat = inode.stat()?;
        if let Some(size) = set.size {
            inode.must_be_file()?;
            let fd = self.data_fd(user, inode, open, true)?;
            let _changing = Changing::new(inode);
            self.as_uid(user, || io::ftruncate(&fd, size).map_err(sys))?;
            inode.changed();
            applied.size = set.size;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.as_user(user, || node::chown(&inode.path, set.uid, set.gid).map_err(sys))?;
            inode.changed();
            (applied.uid, applied.gid) = (set.uid, set.gid);
        }
        if let Some(mode) = set.mode {
            let mask = set.mode_mask.unwrap_or(0o7777) & 0o7777;
            // The owner change above may have cleared bits; those outside the mask stay as they are now.
            let now = if mask == 0o7777 { 0 } else { inode.stat()?.mode & 0o7777 };
            let mode = (now & !mask) | (mode & mask);
            if inode.kind == FileKind::Symlink {
                return Err(ErrorKind::NotSupported.into());
            }
            self.as_user(user, || node::chmod(&inode.path, mode).map_err(sys))?;
            inode.changed();
            (applied.mode, applied.mode_mask) = (set.mode, set.mode_mask);
        }
        if let Some(acl) = &set.acl {
            self.set_acl(user, inode, acl)?;
            inode.changed();
            applied.acl = set.acl.clone();
        }
        if set.atime.is_some() || set.mtime.is_some() {
            self.set_times(user, inode, stat.uid, set)?;
            inode.changed();
            (applied.atime, applied.mtime) = (set.atime, set.mtime);
        }
        Ok(())
    }

    fn set_times(&self, user: &Cred, inode: &Arc<Inode>, owner: u32, set: &SetAttr) -> Result<()> {
        let times = || node::utimens(&inode.path, when(set.atime), when(set.mtime));
        let given = |t: Option<SetTime>| matches!(t, Some(SetTime::To(_)));
        let result = self.as_user(user, || Ok(times()))?;
        match result {
            // Linux lets somebody who may write set both times to the present, but not one of the two; NFS makes no
            // such difference (RFC 8881 5.8.2.44).
            Err(Errno::PERM | Errno::ACCESS)
                if self.switching && user.uid != owner && !given(set.atime) && !given(set.mtime) =>
            {
                self.must_have(user, inode, W)?;
                times().map_err(sys)
            }
            other => other.map_err(sys),
        }
    }

    /// Applies the attributes of a request to an object that it has just made, whose mode is set already. What the user
    /// may not set is left out, as it is not an error of the create (RFC 8881 18.16.3: attrset tells).
    pub(crate) fn set_new(
        self: &Arc<Self>,
        user: &Cred,
        inode: &Arc<Inode>,
        open: Option<&OpenFile>,
        set: &SetAttr,
    ) -> Result<SetAttr> {
        let mut applied = SetAttr::default();
        let stat = inode.stat()?;
        let special = set.mode.unwrap_or(0) & 0o7000;
        if let (Some(mode), true) = (set.mode, inode.kind != FileKind::Symlink) {
            applied.mode = Some(mode);
            applied.umask = set.umask;
        }
        if let Some(size) = set.size
            && inode.kind == FileKind::Regular
        {
            if size != 0 {
                let fd = self.data_fd(user, inode, open, true)?;
                self.as_uid(user, || io::ftruncate(&fd, size).map_err(sys))?;
            }
            applied.size = set.size;
        }
        let (uid, gid) = (set.uid.filter(|uid| *uid != stat.uid), set.gid.filter(|gid| *gid != stat.gid));
        let mut owner_set = true;
        if uid.is_some() || gid.is_some() {
            let chown = self.as_user(user, || Ok(node::chown(&inode.path, uid, gid)))?;
            owner_set = chown.is_ok();
            match chown {
                Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                Err(e) => return Err(sys(e)),
            }
        }
        if owner_set {
            (applied.uid, applied.gid) = (set.uid, set.gid);
        }
        // A change of size or owner clears set-id bits, and mkdir takes none.
        if special != 0 && inode.kind != FileKind::Symlink {
            let now = inode.stat()?.mode & 0o7777;
            if now & special != special {
                self.as_user(user, || node::chmod(&inode.path, now | special).map_err(sys))?;
            }
        }
        if let Some(acl) = &set.acl {
            self.set_acl(user, inode, acl)?;
            applied.acl = set.acl.clone();
        }
        if set.atime.is_some() || set.mtime.is_some() {
            self.set_times(user, inode, stat.uid, set)?;
            (applied.atime, applied.mtime) = (set.atime, set.mtime);
        }
        inode.changed();
        Ok(applied)
    }
}

/// Whether applying these after a create changes the object once more, so that it must be synced by itself.
pub(crate) fn changes_after_create(set: &SetAttr) -> bool {
    set.acl.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.atime.is_some()
        || set.mtime.is_some()
        || set.size.is_some_and(|size| size != 0)
        || set.mode.is_some_and(|mode| mode & 0o7000 != 0)
}
