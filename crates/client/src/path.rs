//! Paths on a server and how they are walked.

use std::fmt;

use bytes::Bytes;
use dhow_proto::v4::ops::{LookupArgs, PutFhArgs};
use dhow_proto::v4::{ArgOp, FileHandle};

use crate::{Error, Result};

/// Where an object is: a path from the root of an [`crate::Fs`], a handle, or a name in a directory given by handle.
///
/// Every method that takes `impl Into<Place>` takes `&str`, `&[u8]`, `&FileHandle` or `(&FileHandle, name)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path; a leading slash changes nothing.
    Path(Bytes),
    /// The object itself.
    Handle(FileHandle),
    /// An entry of a directory.
    Entry(FileHandle, Bytes),
}

impl From<&str> for Place {
    fn from(path: &str) -> Self {
        Self::Path(Bytes::copy_from_slice(path.as_bytes()))
    }
}

impl From<&String> for Place {
    fn from(path: &String) -> Self {
        Self::from(path.as_str())
    }
}

impl From<&[u8]> for Place {
    fn from(path: &[u8]) -> Self {
        Self::Path(Bytes::copy_from_slice(path))
    }
}

impl From<&Bytes> for Place {
    fn from(path: &Bytes) -> Self {
        Self::Path(path.clone())
    }
}

impl From<Bytes> for Place {
    fn from(path: Bytes) -> Self {
        Self::Path(path)
    }
}

impl From<&FileHandle> for Place {
    fn from(fh: &FileHandle) -> Self {
        Self::Handle(fh.clone())
    }
}

impl<N: AsRef<[u8]>> From<(&FileHandle, N)> for Place {
    fn from((dir, name): (&FileHandle, N)) -> Self {
        Self::Entry(dir.clone(), Bytes::copy_from_slice(name.as_ref()))
    }
}

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) | Self::Entry(_, path) => write!(f, "{}", String::from_utf8_lossy(path)),
            Self::Handle(fh) => write!(f, "{fh:?}"),
        }
    }
}

impl Place {
    /// For messages.
    pub(crate) fn shown(&self) -> Bytes {
        match self {
            Self::Path(path) if path.is_empty() => Bytes::from_static(b"/"),
            Self::Path(path) | Self::Entry(_, path) => path.clone(),
            Self::Handle(_) => Bytes::from(self.to_string()),
        }
    }

    /// The directory that holds the object, and its name there.
    ///
    /// # Errors
    ///
    /// When the path has no last name (`/`, `a/..`) or the place is a handle.
    pub(crate) fn split(&self) -> Result<(Place, Bytes)> {
        match self {
            Self::Path(path) => {
                let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
                let whole = path.slice(..end);
                let at = whole.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
                Ok((Self::Path(whole.slice(..at)), crate::client::name(whole.slice(at..))?))
            }
            Self::Entry(dir, name) => Ok((Self::Handle(dir.clone()), crate::client::name(name)?)),
            Self::Handle(_) => Err(Error::Argument("a handle where a name in a directory is needed".into())),
        }
    }

    /// The steps that lead to the object.
    pub(crate) fn walk(&self, root: Option<&FileHandle>) -> Walk {
        match self {
            Self::Path(path) => Walk { start: root.cloned(), steps: steps(path, true) },
            Self::Handle(fh) => Walk { start: Some(fh.clone()), steps: Vec::new() },
            Self::Entry(dir, name) => Walk { start: Some(dir.clone()), steps: steps(name, false) },
        }
    }
}

/// From where, and by which steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walk {
    /// The server's root when `None`.
    pub(crate) start: Option<FileHandle>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Down(Bytes),
    Up,
}

impl Walk {
    /// The operations that make the object current.
    pub(crate) fn ops(&self) -> Vec<ArgOp> {
        let start = match &self.start {
            Some(fh) => ArgOp::PutFh(PutFhArgs { object: fh.clone() }),
            None => ArgOp::PutRootFh,
        };
        let steps = self.steps.iter().map(|step| match step {
            Step::Down(name) => ArgOp::Lookup(LookupArgs { name: name.clone() }),
            Step::Up => ArgOp::Lookupp,
        });
        std::iter::once(start).chain(steps).collect()
    }
}

/// The names of a path. Empty ones and `.` are left out; `..` at the root (`at_root`: where the path begins) leads
/// nowhere.
///
/// `..` after a name is not resolved here: the name may be a symbolic link.
pub(crate) fn steps(path: &[u8], at_root: bool) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if at_root && out.is_empty() => {}
            b".." => out.push(Step::Up),
            name => out.push(Step::Down(Bytes::copy_from_slice(name))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(name: &str) -> Step {
        Step::Down(Bytes::copy_from_slice(name.as_bytes()))
    }

    #[test]
    fn paths_become_steps() {
        assert_eq!(steps(b"", true), []);
        assert_eq!(steps(b"//a/./b//", true), [down("a"), down("b")]);
        assert_eq!(steps(b"/../../a/../b", true), [down("a"), Step::Up, down("b")]);
        assert_eq!(steps(b"../a", false), [Step::Up, down("a")]);
    }

    #[test]
    fn the_last_name_is_split_off() {
        let split = |s: &str| Place::from(s).split().map(|(dir, name)| (dir.to_string(), name.to_vec()));
        assert_eq!(split("/a/b").unwrap(), ("/a/".into(), b"b".to_vec()));
        assert_eq!(split("b//").unwrap(), (String::new(), b"b".to_vec()));
        for bad in ["", "/", "//", "a/..", "a/.", ".."] {
            assert!(matches!(split(bad), Err(Error::Argument(_))), "{bad:?}");
        }
        let fh = FileHandle(Bytes::from_static(b"h"));
        let (dir, name) = Place::from((&fh, "x")).split().unwrap();
        assert_eq!((dir, name), (Place::Handle(fh.clone()), Bytes::from_static(b"x")));
        assert!(Place::from((&fh, "x/y")).split().is_err());
    }
}
