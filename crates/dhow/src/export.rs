//! Exports and their options, the same in a configuration file and on the command line.

use crate::value::{Value, Wrong};
use crate::words::nearest;
use dhow_server::{Delegations, NetMatch, Squash};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// An export as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The path under which clients see it.
    pub name: String,
    /// The directory that it shows.
    pub dir: PathBuf,
    /// Every change is refused.
    pub read_only: bool,
    /// Which users act as the anonymous one.
    pub squash: Squash,
    /// The anonymous user.
    pub anonuid: u32,
    /// The anonymous group.
    pub anongid: u32,
    /// Who may use it; empty: everybody.
    pub clients: Vec<NetMatch>,
    /// Only from ports below 1024.
    pub secure: bool,
    /// Filesystems mounted below `dir` are entered.
    pub crossmnt: bool,
    /// Filesystem id that clients see; `None`: derived.
    pub fsid: Option<u64>,
    /// Changes of names and attributes are on stable storage before the reply.
    pub metadata_sync: bool,
    /// Nobody changes the tree but through this server.
    pub exclusive: bool,
    /// Locks of clients and of local programs know of each other.
    pub local_locks: bool,
    /// Copies may share blocks.
    pub reflink: bool,
    /// Which delegations are given.
    pub delegations: Delegations,
}

/// The user and group "nobody" of Linux.
const NOBODY: u32 = 65_534;

impl Export {
    /// An export with the defaults of docs/configuration.md.
    pub fn new(name: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            dir: dir.into(),
            read_only: false,
            squash: Squash::Root,
            anonuid: NOBODY,
            anongid: NOBODY,
            clients: Vec::new(),
            secure: false,
            crossmnt: false,
            fsid: None,
            metadata_sync: true,
            exclusive: false,
            local_locks: false,
            reflink: true,
            delegations: Delegations::Off,
        }
    }

    /// Reads `/name=DIR[,option...]`.
    ///
    /// # Errors
    /// One line that names the option and the remedy.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let Some((name, dir)) = head.split_once('=').filter(|(n, d)| n.starts_with('/') && !d.is_empty()) else {
            return Err(format!("`{text}` is not an export; write /name=DIR, for example /data=/srv/data"));
        };
        check_name(name).map_err(|e| format!("export {name}: {e}"))?;
        let mut export = Self::new(name, dir);
        for option in parts {
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            export.set_text(key, value).map_err(|e| format!("export {name}: {e}"))?;
        }
        Ok(export)
    }

    fn set_text(&mut self, key: &str, value: Option<&str>) -> Result<(), Wrong> {
        if let Some(set) = FLAGS.iter().find(|f| f.0 == key) {
            if value.is_some() {
                return Err(format!("option `{key}` takes no value"));
            }
            (set.1)(self);
            return Ok(());
        }
        match KEYS.iter().find(|k| k.name == key && k.on_command_line) {
            Some(known) => {
                // A truth value may be named alone.
                let value = value.unwrap_or("true");
                (known.set)(self, &Value::Text(value.to_owned())).map_err(|e| format!("option `{key}` {e}"))
            }
            None => {
                let known = FLAGS.iter().map(|f| f.0).chain(KEYS.iter().filter(|k| k.on_command_line).map(|k| k.name));
                Err(match nearest(key, known.clone()) {
                    Some(near) => format!("unknown option `{key}`; did you mean `{near}`?"),
                    None => format!("unknown option `{key}`; known are {}", known.collect::<Vec<_>>().join(", ")),
                })
            }
        }
    }
}

/// Whether `name` can be the path of an export.
pub fn check_name(name: &str) -> Result<(), Wrong> {
    let parts_fine = || name.split('/').skip(1).all(|p| !p.is_empty() && p != "." && p != ".." && p.len() <= 255);
    if name == "/" || (name.starts_with('/') && parts_fine()) {
        Ok(())
    } else {
        Err("must be an absolute path without empty parts, `.` and `..`, such as /data".into())
    }
}

/// A setting of an export in a configuration file; with `on_command_line` also `--export /name=DIR,key=value`.
pub struct ExportKey {
    /// Its name.
    pub name: &'static str,
    /// Whether the command line takes it too.
    pub on_command_line: bool,
    /// Takes the value.
    pub set: fn(&mut Export, &Value) -> Result<(), Wrong>,
}

const fn key(name: &'static str, set: fn(&mut Export, &Value) -> Result<(), Wrong>) -> ExportKey {
    ExportKey { name, on_command_line: true, set }
}

/// Every setting of an export.
pub const KEYS: &[ExportKey] = &[
    ExportKey {
        name: "name",
        on_command_line: false,
        set: |e, v| {
            let name = v.text()?;
            check_name(name)?;
            name.clone_into(&mut e.name);
            Ok(())
        },
    },
    ExportKey {
        name: "dir",
        on_command_line: false,
        set: |e, v| {
            e.dir = v.text()?.into();
            Ok(())
        },
    },
    ExportKey {
        name: "access",
        on_command_line: false,
        set: |e, v| {
            e.read_only = v.one_of(&[("rw", false), ("ro", true)])?;
            Ok(())
        },
    },
    ExportKey {
        name: "squash",
        on_command_line: false,
        set: |e, v| {
            e.squash = v.one_of(&[("root", Squash::Root), ("none", Squash::None), ("all", Squash::All)])?;
            Ok(())
        },
    },
    key("anonuid", |e, v| {
        e.anonuid = id(v)?;
        Ok(())
    }),
    key("anongid", |e, v| {
        e.anongid = id(v)?;
        Ok(())
    }),
    key("clients", |e, v| {
        for text in v.list()? {
            e.clients.push(text.parse::<NetMatch>().map_err(|e| format!("is wrong: {e}"))?);
        }
        Ok(())
    }),
    key("secure", |e, v| {
        e.secure = v.boolean()?;
        Ok(())
    }),
    key("crossmnt", |e, v| {
        e.crossmnt = v.boolean()?;
        Ok(())
    }),
    key("fsid", |e, v| {
        e.fsid = Some(v.number(1..=u64::MAX)?);
        Ok(())
    }),
    key("metadata_sync", |e, v| {
        e.metadata_sync = v.boolean()?;
        Ok(())
    }),
    key("exclusive", |e, v| {
        e.exclusive = v.boolean()?;
        Ok(())
    }),
    key("local_locks", |e, v| {
        e.local_locks = v.boolean()?;
        Ok(())
    }),
    // The same the other way round: what the documents call it where delegations are concerned.
    key("local_writers", |e, v| {
        e.exclusive = v.one_of(&[("yes", false), ("no", true)])?;
        Ok(())
    }),
    key("delegations", |e, v| {
        e.delegations =
            v.one_of(&[("off", Delegations::Off), ("read", Delegations::Read), ("all", Delegations::All)])?;
        Ok(())
    }),
    key("copy.reflink", |e, v| {
        e.reflink = v.one_of(&[("auto", true), ("never", false)])?;
        Ok(())
    }),
];

fn id(value: &Value) -> Result<u32, Wrong> {
    // The number above stands for "no such user" in system calls.
    let id = value.number(0..=u64::from(u32::MAX - 1))?;
    u32::try_from(id).map_err(|e| e.to_string())
}

type Flag = (&'static str, fn(&mut Export));

/// Options of one word, as exports(5) has them.
const FLAGS: &[Flag] = &[
    ("ro", |e| e.read_only = true),
    ("rw", |e| e.read_only = false),
    ("root_squash", |e| e.squash = Squash::Root),
    ("no_root_squash", |e| e.squash = Squash::None),
    ("all_squash", |e| e.squash = Squash::All),
    ("insecure", |e| e.secure = false),
    ("nocrossmnt", |e| e.crossmnt = false),
];

/// Whether `exclusive` can hold where it is set: another export that shows the same files read-write is a second way to
/// change them, of which the first does not know.
///
/// # Errors
/// One line with the remedy.
pub fn check_exclusive(exports: &[Export]) -> Result<(), String> {
    for export in exports.iter().filter(|e| e.exclusive) {
        for other in exports.iter().filter(|o| o.name != export.name && !o.read_only) {
            if shows(export, other) || shows(other, export) {
                return Err(format!(
                    "export {}: nobody else may change an exclusive tree, but export {} shows the same files \
                     read-write; make that read-only, or set local_writers = \"yes\" here",
                    export.name, other.name
                ));
            }
        }
    }
    Ok(())
}

/// Whether `outer` shows what `inner` does.
fn shows(outer: &Export, inner: &Export) -> bool {
    let real = |e: &Export| std::fs::canonicalize(&e.dir).unwrap_or_else(|_| e.dir.clone());
    let device = |e: &Export| std::fs::metadata(&e.dir).ok().map(|m| m.dev());
    real(inner).starts_with(real(outer)) && (outer.crossmnt || device(outer) == device(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let text = "/data=/srv/data,ro,no_root_squash,anonuid=7,anongid=8,clients=10.0.0.0/8,clients=::1,secure,\
                    crossmnt,copy.reflink=never,metadata_sync=false,fsid=12,exclusive,local_locks";
        let e = Export::parse(text).unwrap();
        assert_eq!((e.name.as_str(), e.dir.to_str()), ("/data", Some("/srv/data")));
        assert!(
            e.read_only && e.secure && e.crossmnt && e.exclusive && e.local_locks && !e.reflink && !e.metadata_sync
        );
        assert_eq!((e.squash, e.anonuid, e.anongid, e.fsid), (Squash::None, 7, 8, Some(12)));
        assert_eq!(e.clients, ["10.0.0.0/8".parse::<NetMatch>().unwrap(), "::1/128".parse().unwrap()]);
        let e = Export::parse("/data=/srv,local_writers=no,delegations=all").unwrap();
        assert!(e.exclusive && e.delegations == Delegations::All);
        let e = Export::parse("/data=/srv,exclusive,local_writers=yes,delegations=read").unwrap();
        assert!(!e.exclusive && e.delegations == Delegations::Read);
        let e = Export::parse("/=/srv").unwrap();
        assert_eq!(e, Export::new("/", "/srv"));
        assert_eq!((e.squash, e.anonuid, e.read_only, e.secure), (Squash::Root, 65_534, false, false));
    }

    #[test]
    fn mistakes_are_named_with_the_remedy() {
        let wrong = |text: &str| Export::parse(text).unwrap_err();
        assert_eq!(wrong("data=/srv"), "`data=/srv` is not an export; write /name=DIR, for example /data=/srv/data");
        assert_eq!(wrong("/data="), "`/data=` is not an export; write /name=DIR, for example /data=/srv/data");
        assert_eq!(
            wrong("/a=/b,no_rot_squash"),
            "export /a: unknown option `no_rot_squash`; did you mean `no_root_squash`?"
        );
        assert_eq!(wrong("/a=/b,anonuid=nobody"), "export /a: option `anonuid` must be a number from 0 to 4294967294");
        assert_eq!(wrong("/a=/b,ro=yes"), "export /a: option `ro` takes no value");
        assert_eq!(wrong("/a=/b,copy.reflink=no"), "export /a: option `copy.reflink` must be \"auto\" or \"never\"");
        assert!(wrong("/a=/b,clients=10.0.0.0/33").contains("'10.0.0.0/33' is neither an address nor a network"));
        assert!(wrong("/a=/b,zzzzzzzzzzz").starts_with("export /a: unknown option `zzzzzzzzzzz`; known are ro, rw,"));
        assert!(wrong("/a/../b=/b").contains("must be an absolute path"));
    }
}
