//! The tree: inodes, names, permissions. Everything runs under the one lock of the filesystem.

use super::{Data, Dir, Inode, ROOT, Tree};
use bytes::Bytes;
use dhow_vfs::{Attr, Cred, ErrorKind, FileKind, FsId, Name, Result, SetAttr, SetTime, Time};
use std::collections::BTreeMap;

/// Most links of one object.
pub(super) const MAX_LINKS: u32 = 32_000;

/// Permission bits as a mode has them for one class of users.
pub(super) const R: u32 = 4;
pub(super) const W: u32 = 2;
pub(super) const X: u32 = 1;

impl Inode {
    /// Whether the mode bits let `cred` do all of `want`. The superuser reads and writes everything, searches every
    /// directory, and executes what anybody may execute.
    pub(super) fn permits(&self, cred: &Cred, want: u32) -> bool {
        if cred.uid == 0 {
            return want & X == 0 || self.kind == FileKind::Directory || self.mode & 0o111 != 0;
        }
        let class = match () {
            () if self.uid == cred.uid => self.mode >> 6,
            () if cred.in_group(self.gid) => self.mode >> 3,
            () => self.mode,
        };
        class & want == want
    }

    /// As [`Inode::permits`], and the owner may always read and write data.
    pub(super) fn permits_io(&self, cred: &Cred, want: u32) -> bool {
        self.uid == cred.uid || self.permits(cred, want)
    }

    /// A user other than the superuser wrote: set-id bits go.
    pub(super) fn drop_set_id(&mut self, cred: &Cred) {
        if cred.uid != 0 && self.kind == FileKind::Regular {
            self.mode &= !0o4000;
            if self.mode & 0o010 != 0 {
                self.mode &= !0o2000;
            }
        }
    }

    pub(super) fn want_regular(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(ErrorKind::IsDir.into()),
            FileKind::Symlink => Err(ErrorKind::Symlink.into()),
            _ => Err(ErrorKind::WrongType.into()),
        }
    }

    pub(super) fn want_dir(&self) -> Result<()> {
        match self.kind {
            FileKind::Directory => Ok(()),
            FileKind::Symlink => Err(ErrorKind::Symlink.into()),
            _ => Err(ErrorKind::NotDir.into()),
        }
    }

    pub(super) fn attr(&self, fs: u64, ino: u64) -> Attr {
        let size = match self.kind {
            FileKind::Regular => self.data.size,
            FileKind::Symlink => self.target.len() as u64,
            FileKind::Directory => self.dir.names.len() as u64,
            _ => 0,
        };
        Attr {
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size,
            used: self.data.used(),
            rdev: self.rdev,
            fsid: FsId { major: fs, minor: 0 },
            fileid: ino,
            mounted_on_fileid: ino,
            change: self.change,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
        }
    }
}

impl Dir {
    /// Puts a name in, or points a name that is there to another object; then its cookie stays.
    pub(super) fn put(&mut self, name: &Bytes, ino: u64) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.0 = ino;
            return;
        }
        // Cookies 0, 1 and 2 are never used (RFC 8881 18.23).
        self.next_cookie = self.next_cookie.max(2) + 1;
        self.names.insert(name.clone(), (ino, self.next_cookie));
        self.order.insert(self.next_cookie, name.clone());
    }

    pub(super) fn take(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }
}

impl Tree {
    pub(super) fn get(&self, ino: u64) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    pub(super) fn get_mut(&mut self, ino: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    /// A directory in which `cred` may do `want`.
    pub(super) fn dir(&self, ino: u64, cred: &Cred, want: u32) -> Result<&Dir> {
        let inode = self.get(ino)?;
        inode.want_dir()?;
        if !inode.permits(cred, want) {
            return Err(ErrorKind::Access.into());
        }
        Ok(&inode.dir)
    }

    /// A new object that nothing leads to yet.
    pub(super) fn fresh(&mut self, kind: FileKind, mode: u32, cred: &Cred, now: Time) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        let inode = Inode {
            kind,
            mode,
            uid: cred.uid,
            gid: cred.gid,
            nlink: 1,
            rdev: (0, 0),
            change: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            verifier: None,
            xattrs: BTreeMap::new(),
            target: Bytes::new(),
            dir: Dir::default(),
            data: Data::default(),
            synced: Data::default(),
            opens: 0,
        };
        self.inodes.insert(ino, inode);
        self.bump(ino, now, false);
        ino
    }

    /// A change of an object: of its data too, if `data`.
    pub(super) fn bump(&mut self, ino: u64, now: Time, data: bool) {
        self.next_change += 1;
        let change = self.next_change;
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.change = change;
            inode.ctime = now;
            if data {
                inode.mtime = now;
            }
        }
    }

    /// Forgets an object that neither a name nor an open leads to.
    pub(super) fn reap(&mut self, ino: u64) {
        if self.inodes.get(&ino).is_some_and(|i| i.nlink == 0 && i.opens == 0)
            && let Some(gone) = self.inodes.remove(&ino)
        {
            self.used -= gone.data.used();
        }
    }

    /// One name less leads to `ino`; says how many are left.
    pub(super) fn unlink(&mut self, ino: u64, now: Time) -> u32 {
        self.bump(ino, now, false);
        let Some(inode) = self.inodes.get_mut(&ino) else { return 0 };
        inode.nlink = if inode.kind == FileKind::Directory { 0 } else { inode.nlink - 1 };
        let left = inode.nlink;
        self.reap(ino);
        left
    }

    /// Whether `cred` may take the entry for `child` out of `dir`: of a sticky directory only what is one's own.
    pub(super) fn may_take(&self, dir: u64, child: u64, cred: &Cred) -> Result<()> {
        let (dir, child) = (self.get(dir)?, self.get(child)?);
        if !dir.permits(cred, W | X) {
            return Err(ErrorKind::Access.into());
        }
        let sticky = dir.mode & 0o1000 != 0 && cred.uid != 0 && cred.uid != dir.uid && cred.uid != child.uid;
        if sticky { Err(ErrorKind::Perm.into()) } else { Ok(()) }
    }

    /// Whether `inner` is `outer` or lies below it.
    pub(super) fn is_within(&self, inner: u64, outer: u64) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            match self.inodes.get(&at) {
                Some(inode) if at != ROOT => at = inode.dir.parent,
                _ => return false,
            }
        }
    }

    /// Adds a new object to a directory, with what a mode, a umask and a set-group-id directory say.
    pub(super) fn add(
        &mut self,
        dir: u64,
        name: &Name,
        (kind, default_mode): (FileKind, u32),
        set: &SetAttr,
        cred: &Cred,
        now: Time,
    ) -> Result<(u64, SetAttr)> {
        if self.dir(dir, cred, X)?.names.contains_key(name.as_bytes()) {
            return Err(ErrorKind::Exists.into());
        }
        let parent = self.get(dir)?;
        if parent.nlink == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        if !parent.permits(cred, W | X) {
            return Err(ErrorKind::Access.into());
        }
        let mut owner = cred.clone();
        let mut mode = set.mode.unwrap_or(default_mode) & 0o7777 & !set.umask.unwrap_or(0);
        if parent.mode & 0o2000 != 0 {
            owner.gid = parent.gid;
            if kind == FileKind::Directory {
                mode |= 0o2000;
            }
        }
        let ino = self.fresh(kind, mode, &owner, now);
        // The mode is there already; an owner, a size and times are set as SETATTR would.
        let rest = SetAttr { mode: None, umask: None, mode_mask: None, ..set.clone() };
        if let Err(e) = self.set(ino, true, &rest, cred, now) {
            self.inodes.remove(&ino);
            return Err(e);
        }
        if let Some(inode) = self.inodes.get_mut(&ino) {
            // The size and the owner of the same call take no set-id bits from it.
            inode.mode = mode;
            if kind == FileKind::Directory {
                inode.nlink = 2;
                inode.dir.parent = dir;
            }
        }
        let name = Bytes::copy_from_slice(name.as_bytes());
        let parent = self.get_mut(dir)?;
        parent.dir.put(&name, ino);
        if kind == FileKind::Directory {
            parent.nlink += 1;
        }
        self.bump(dir, now, true);
        Ok((ino, SetAttr { mode_mask: None, ..set.clone() }))
    }

    /// Sets attributes; everything is checked before anything is set. `io`: the size may be set without a look at the mode.
    pub(super) fn set(&mut self, ino: u64, io: bool, set: &SetAttr, cred: &Cred, now: Time) -> Result<()> {
        let inode = self.get(ino)?;
        let owner = cred.uid == 0 || cred.uid == inode.uid;
        if set.size.is_some() {
            inode.want_regular()?;
            if !io && !inode.permits_io(cred, W) {
                return Err(ErrorKind::Access.into());
            }
        }
        if set.uid.is_some_and(|u| cred.uid != 0 && !(u == inode.uid && owner)) {
            return Err(ErrorKind::Perm.into());
        }
        if set.gid.is_some_and(|g| cred.uid != 0 && !(owner && (g == inode.gid || cred.in_group(g)))) {
            return Err(ErrorKind::Perm.into());
        }
        if set.mode.is_some() && !owner {
            return Err(ErrorKind::Perm.into());
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                SetTime::To(_) if !owner => return Err(ErrorKind::Perm.into()),
                SetTime::Now if !owner && !inode.permits(cred, W) => return Err(ErrorKind::Access.into()),
                SetTime::To(t) if t.nanos >= 1_000_000_000 => return Err(ErrorKind::Invalid.into()),
                _ => {}
            }
        }
        if set.is_empty() {
            return Ok(());
        }
        let inode = self.get_mut(ino)?;
        let before = inode.data.used();
        let mut data_changed = false;
        if let Some(size) = set.size {
            data_changed = true;
            inode.data.resize(size);
            inode.synced = inode.data.clone();
            inode.drop_set_id(cred);
        }
        let after = inode.data.used();
        if set.uid.is_some() || set.gid.is_some() {
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            if inode.kind != FileKind::Directory {
                inode.drop_set_id(&Cred::user(1, 1));
            }
        }
        if let Some(mode) = set.mode {
            let mask = set.mode_mask.unwrap_or(0o7777) & 0o7777;
            let mut mode = (inode.mode & !mask) | (mode & mask);
            if cred.uid != 0 && !cred.in_group(inode.gid) {
                mode &= !0o2000;
            }
            inode.mode = mode;
        }
        let pick = |t: SetTime| if let SetTime::To(t) = t { t } else { now };
        if let Some(t) = set.atime {
            inode.atime = pick(t);
        }
        self.bump(ino, now, data_changed);
        if let Some(t) = set.mtime {
            self.get_mut(ino)?.mtime = pick(t);
        }
        self.used = self.used + after - before;
        Ok(())
    }

    /// Makes everything stable.
    pub(super) fn sync_all(&mut self) {
        for inode in self.inodes.values_mut() {
            inode.synced = inode.data.clone();
        }
        self.sync_metadata();
    }

    /// Makes metadata stable, where it is not so at once.
    pub(super) fn sync_metadata(&mut self) {
        if self.journal.is_some() {
            self.journal = Some(self.inodes.clone());
        }
    }

    /// After a crash: counts links anew, and drops what nothing leads to and names of what is not there.
    pub(super) fn recount(&mut self) {
        let mut links: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 2)]);
        let mut ways = vec![ROOT];
        let present: std::collections::HashSet<u64> = self.inodes.keys().copied().collect();
        while let Some(at) = ways.pop() {
            let Some(inode) = self.inodes.get_mut(&at) else { continue };
            inode.dir.names.retain(|_, (ino, _)| present.contains(ino));
            let names = &inode.dir.names;
            inode.dir.order.retain(|_, name| names.contains_key(name));
            let below: Vec<u64> = names.values().map(|e| e.0).collect();
            for ino in below {
                if self.inodes.get(&ino).is_some_and(|i| i.kind == FileKind::Directory) {
                    ways.push(ino);
                    *links.entry(ino).or_default() += 2;
                    *links.entry(at).or_default() += 1;
                } else {
                    *links.entry(ino).or_default() += 1;
                }
            }
        }
        self.inodes.retain(|ino, inode| {
            inode.nlink = links.get(ino).copied().unwrap_or(0);
            inode.nlink > 0
        });
        self.used = self.inodes.values().map(|i| i.data.used()).sum();
    }
}
