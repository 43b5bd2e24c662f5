//! `dhow ls` and `dhow stat`.

use crate::cli::{Ls, Stat};
use crate::exit::{Code, Failure, Outcome, complain};
use crate::output::{is_heard, printable, say, say_json};
use crate::place::{Place, Places, check_urls};
use crate::words::{date, short_bytes};
use bytes::Bytes;
use dhow_copy::{ErrorKind, Kind, Meta, Time};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Symbolic links read at the same time.
const LINKS_IN_FLIGHT: usize = 64;

/// `dhow ls`.
pub async fn ls(args: Ls) -> Outcome {
    check_urls(&args.urls)?;
    Places::with(async |places| ls_in(&args, places).await).await
}

async fn ls_in(args: &Ls, places: &mut Places) -> Outcome {
    let mut lister = Lister { args, json: Vec::new(), failures: 0, unreachable: false, printed: false };
    let many = args.urls.len() > 1 || args.recursive;
    for url in &args.urls {
        let place = places.url(url).await?;
        let meta = if place.is_dir {
            place.endpoint.stat_followed(&place.path).await
        } else {
            place.endpoint.stat(&place.path).await
        };
        match meta {
            Ok(meta) if meta.kind == Kind::Dir && !args.directory => lister.tree(&place, many).await,
            Ok(meta) => {
                let name = place.shown();
                let target = lister.target(&place, place.path.clone(), &meta).await;
                lister.one(&place, &place.path, name.as_bytes(), &meta, target.as_deref());
            }
            Err(e) => lister.failed(&e),
        }
    }
    if args.json {
        say_json(&json!({"entries": lister.json}));
    }
    ended(lister.failures, lister.unreachable)
}

fn ended(failures: u64, unreachable: bool) -> Outcome {
    match (failures, unreachable) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure { code: Code::Unreachable, ..Failure::told() }),
        _ => Err(Failure::told()),
    }
}

struct Lister<'a> {
    args: &'a Ls,
    json: Vec<Value>,
    failures: u64,
    unreachable: bool,
    printed: bool,
}

impl Lister<'_> {
    fn failed(&mut self, e: &dhow_copy::Error) {
        complain(e);
        self.failures += 1;
        self.unreachable |= e.kind == ErrorKind::Unreachable;
    }

    /// A directory, and with -R those below it, the deepest after their parents.
    async fn tree(&mut self, place: &Place, titles: bool) {
        let mut waiting = vec![place.path.clone()];
        while let Some(dir) = waiting.pop().filter(|_| is_heard()) {
            let entries = match self.entries(place, &dir).await {
                Ok(entries) => entries,
                Err(e) => {
                    self.failed(&e);
                    continue;
                }
            };
            if titles && !self.args.json {
                if self.printed {
                    say("");
                }
                say(format!("{}:", printable(place.endpoint.shown(&dir).as_bytes())));
            }
            self.printed = true;
            let mut below = Vec::new();
            // Those of a far server come together, and in their order.
            let targets =
                entries.iter().map(|(name, meta)| self.target(place, dir.join(OsStr::from_bytes(name)), meta));
            let targets: Vec<_> = stream::iter(targets).buffered(LINKS_IN_FLIGHT).collect().await;
            for ((name, meta), target) in entries.iter().zip(targets).take_while(|_| is_heard()) {
                let path = dir.join(OsStr::from_bytes(name));
                if self.args.recursive && meta.kind == Kind::Dir {
                    below.push(path.clone());
                }
                self.one(place, &path, name, meta, target.as_deref());
            }
            // The first of them comes next.
            waiting.extend(below.into_iter().rev());
        }
    }

    async fn entries(&mut self, place: &Place, dir: &Path) -> dhow_copy::Result<Vec<(Vec<u8>, Meta)>> {
        let mut pages = place.endpoint.list(dir).await?;
        let mut entries = Vec::new();
        while let Some(page) = pages.next().await? {
            for entry in page {
                if !self.args.all && entry.name.starts_with(b".") {
                    continue;
                }
                match entry.meta {
                    Ok(meta) => entries.push((entry.name.to_vec(), meta)),
                    Err(e) => self.failed(&e),
                }
            }
        }
        entries.sort_by(|a, b| {
            let order = if self.args.by_time {
                b.1.mtime.cmp(&a.1.mtime)
            } else if self.args.by_size {
                b.1.size.cmp(&a.1.size)
            } else {
                Ordering::Equal
            };
            let order = order.then_with(|| a.0.cmp(&b.0));
            if self.args.reverse { order.reverse() } else { order }
        });
        Ok(entries)
    }

    /// Where a symbolic link leads, if that is shown.
    fn target(&self, place: &Place, path: PathBuf, meta: &Meta) -> impl Future<Output = Option<Bytes>> + use<> {
        let shown = meta.kind == Kind::Symlink && (self.args.long || self.args.json);
        let endpoint = shown.then(|| place.endpoint.clone());
        async move { endpoint?.read_link(&path).await.ok() }
    }

    fn one(&mut self, place: &Place, path: &Path, name: &[u8], meta: &Meta, target: Option<&[u8]>) {
        if self.args.json {
            self.json.push(describe(&place.endpoint.shown(path), name, meta, target));
            return;
        }
        let name = printable(name);
        if !self.args.long {
            say(name);
            return;
        }
        let size = match meta.kind {
            Kind::Block(major, minor) | Kind::Char(major, minor) => format!("{major}, {minor}"),
            _ if self.args.human_readable => short_bytes(meta.size),
            _ => meta.size.to_string(),
        };
        let arrow = target.map(|t| format!(" -> {}", printable(t))).unwrap_or_default();
        say(format!(
            "{} {:>3} {:>7} {:>7} {:>12} {} {name}{arrow}",
            mode_text(meta),
            meta.nlink,
            owner(meta.uid),
            owner(meta.gid),
            size,
            date(meta.mtime.secs),
        ));
    }
}

fn owner(id: Option<u32>) -> String {
    id.map_or_else(|| "?".into(), |id| id.to_string())
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Block(..) => "block device",
        Kind::Char(..) => "character device",
    }
}

/// `drwxr-xr-x`.
fn mode_text(meta: &Meta) -> String {
    let mut text = String::from(match meta.kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::Block(..) => 'b',
        Kind::Char(..) => 'c',
    });
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (i, (bit, with_x, without_x)) in special.into_iter().enumerate() {
        let bits = meta.mode >> (6 - 3 * i);
        let x = bits & 1 != 0;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (meta.mode & bit != 0, x) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn time(t: Time) -> Value {
    json!({"seconds": t.secs, "nanoseconds": t.nanos})
}

fn describe(place: &str, name: &[u8], meta: &Meta, target: Option<&[u8]>) -> Value {
    let mut value = json!({
        "path": place,
        "name": String::from_utf8_lossy(name),
        "type": kind_name(meta.kind),
        "mode": format!("{:04o}", meta.mode),
        "links": meta.nlink,
        "uid": meta.uid,
        "gid": meta.gid,
        "size": meta.size,
        "used": meta.used,
        "fileid": meta.id.2,
        "fsid": [meta.id.0, meta.id.1],
        "atime": time(meta.atime),
        "mtime": time(meta.mtime),
        "ctime": time(meta.ctime),
    });
    if let Some(map) = value.as_object_mut() {
        if let Kind::Block(major, minor) | Kind::Char(major, minor) = meta.kind {
            map.insert("device".into(), json!([major, minor]));
        }
        if let Some(target) = target {
            map.insert("target".into(), json!(String::from_utf8_lossy(target)));
        }
    }
    value
}

/// `dhow stat`.
pub async fn stat(args: Stat) -> Outcome {
    check_urls(&args.urls)?;
    Places::with(async |places| stat_in(&args, places).await).await
}

async fn stat_in(args: &Stat, places: &mut Places) -> Outcome {
    let (mut all, mut failures, mut unreachable) = (Vec::new(), 0, false);
    for url in &args.urls {
        let place = places.url(url).await?;
        let meta = if args.dereference || place.is_dir {
            place.endpoint.stat_followed(&place.path).await
        } else {
            place.endpoint.stat(&place.path).await
        };
        match meta {
            Ok(meta) => {
                let target = match meta.kind {
                    Kind::Symlink => place.endpoint.read_link(&place.path).await.ok(),
                    _ => None,
                };
                let shown = place.shown();
                let path = PathBuf::from(&place.path);
                let name = path.file_name().map_or(&b"/"[..], OsStrExt::as_bytes);
                if args.json {
                    all.push(describe(&shown, name, &meta, target.as_deref()));
                } else {
                    say(stat_text(&shown, &meta, target.as_deref()));
                }
            }
            Err(e) => {
                complain(&e);
                failures += 1;
                unreachable |= e.kind == ErrorKind::Unreachable;
            }
        }
    }
    if args.json {
        say_json(&json!({"entries": all}));
    }
    ended(failures, unreachable)
}

fn stat_text(shown: &str, meta: &Meta, target: Option<&[u8]>) -> String {
    let arrow = target.map(|t| format!(" -> {}", printable(t))).unwrap_or_default();
    let time = |t: Time| format!("{}.{:09} UTC", date(t.secs), t.nanos);
    let device = match meta.kind {
        Kind::Block(major, minor) | Kind::Char(major, minor) => format!("  Device: {major}, {minor}"),
        _ => String::new(),
    };
    format!(
        "  File: {}{arrow}\n  Size: {:<14} Used: {:<14} {}{device}\n  Mode: {:04o} ({})  Uid: {}  Gid: {}  Links: {}\n\
         Fileid: {}  Fsid: {:x}.{:x}\nAccess: {}\nModify: {}\nChange: {}",
        printable(shown.as_bytes()),
        meta.size,
        meta.used,
        kind_name(meta.kind),
        meta.mode,
        mode_text(meta),
        owner(meta.uid),
        owner(meta.gid),
        meta.nlink,
        meta.id.2,
        meta.id.0,
        meta.id.1,
        time(meta.atime),
        time(meta.mtime),
        time(meta.ctime),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_has_them() {
        let time = Time { secs: 0, nanos: 0 };
        let meta = |kind, mode| Meta {
            kind,
            mode,
            uid: None,
            gid: None,
            size: 0,
            used: 0,
            nlink: 1,
            id: (0, 0, 0),
            atime: time,
            mtime: time,
            ctime: time,
        };
        assert_eq!(mode_text(&meta(Kind::Dir, 0o755)), "drwxr-xr-x");
        assert_eq!(mode_text(&meta(Kind::File, 0o4711)), "-rws--x--x");
        assert_eq!(mode_text(&meta(Kind::File, 0o2640)), "-rw-r-S---");
        assert_eq!(mode_text(&meta(Kind::Dir, 0o1776)), "drwxrwxrwT");
    }
}
