//! The bytes of a handle.
//!
//! ```text
//! kernel handle   01  filesystem(4)  type(4)  bytes(0..)          all big-endian
//! number          02  filesystem(4)  inode(8)  birth: seconds(8) nanoseconds(4), ff.. if unknown
//! ```
//!
//! The second form serves filesystems without handles, and handles too long to be carried.

use dhow_sys::handle::KernelHandle;
use dhow_sys::open::{Stat, Time};
use dhow_vfs::{HANDLE_MAX, Handle};

const KERNEL: u8 = 0x01;
const NUMBER: u8 = 0x02;
const NO_BIRTH: u32 = u32::MAX;

/// The longest kernel handle that fits.
pub(crate) const MAX_KERNEL_BYTES: usize = HANDLE_MAX - 9;

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Kernel { fs: u32, handle: KernelHandle },
    Number { fs: u32, ino: u64, birth: Option<Time> },
}

/// A handle around a kernel handle; `None` if that is too long.
pub(crate) fn kernel(fs: u32, inner: &KernelHandle) -> Option<Handle> {
    let mut bytes = Vec::with_capacity(9 + inner.bytes().len());
    bytes.push(KERNEL);
    bytes.extend_from_slice(&fs.to_be_bytes());
    bytes.extend_from_slice(&inner.kind().to_be_bytes());
    bytes.extend_from_slice(inner.bytes());
    Handle::new(&bytes)
}

/// A handle made of an inode number and a birth time.
pub(crate) fn number(fs: u32, stat: &Stat) -> Option<Handle> {
    let mut bytes = Vec::with_capacity(25);
    bytes.push(NUMBER);
    bytes.extend_from_slice(&fs.to_be_bytes());
    bytes.extend_from_slice(&stat.ino.to_be_bytes());
    let (sec, nsec) = stat.btime.map_or((-1, NO_BIRTH), |t| (t.sec, t.nsec));
    bytes.extend_from_slice(&sec.to_be_bytes());
    bytes.extend_from_slice(&nsec.to_be_bytes());
    Handle::new(&bytes)
}

/// Takes a handle apart; `None` if it is none of ours.
pub(crate) fn parse(handle: &Handle) -> Option<Parsed> {
    let (form, rest) = handle.as_bytes().split_first()?;
    let (fs, rest) = rest.split_first_chunk()?;
    let fs = u32::from_be_bytes(*fs);
    match *form {
        KERNEL => {
            let (kind, bytes) = rest.split_first_chunk()?;
            Some(Parsed::Kernel { fs, handle: KernelHandle::new(i32::from_be_bytes(*kind), bytes)? })
        }
        NUMBER => {
            let (ino, rest) = rest.split_first_chunk()?;
            let (sec, rest) = rest.split_first_chunk()?;
            let nsec = u32::from_be_bytes(rest.try_into().ok()?);
            let birth = (nsec != NO_BIRTH).then(|| Time { sec: i64::from_be_bytes(*sec), nsec });
            Some(Parsed::Number { fs, ino: u64::from_be_bytes(*ino), birth })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_rubbish() {
        let inner = KernelHandle::new(0x81, &[7; 12]).unwrap();
        let handle = kernel(0xdead_beef, &inner).unwrap();
        assert_eq!(parse(&handle), Some(Parsed::Kernel { fs: 0xdead_beef, handle: inner }));
        assert!(kernel(1, &KernelHandle::new(1, &[0; MAX_KERNEL_BYTES]).unwrap()).is_some());
        assert!(kernel(1, &KernelHandle::new(1, &[0; MAX_KERNEL_BYTES + 1]).unwrap()).is_none());
        for len in [0, 1, 4, 5, 8, 24, 26, 104] {
            for form in [0, 1, 2, 3] {
                let mut bytes = vec![form; len];
                bytes.iter_mut().skip(1).for_each(|b| *b = 0xff);
                // Whatever it is, it is refused or understood; nothing panics.
                let _ = parse(&Handle::new(&bytes).unwrap());
            }
        }
        assert_eq!(parse(&Handle::new(b"").unwrap()), None);
        assert_eq!(parse(&Handle::new(&[2; 24]).unwrap()), None);
    }
}
