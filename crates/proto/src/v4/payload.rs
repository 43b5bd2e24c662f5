//! Finds the large data inside a message from its first bytes, so that a receiver can place that data page-aligned.
//!
//! The functions look at the beginning of a record and never trust it: lengths found are claims of the peer, which the
//! caller compares with the size of the record before it uses them. `None` means "receive it like any other message".

use super::{OpNum, PROC_COMPOUND, Status, VERSION};
use crate::NFS_PROGRAM;
use dhow_rpc::{Flavor, MAX_AUTH_BYTES, RPC_VERSION};
use dhow_xdr::padding;

/// Most operations looked at before the one with the payload.
const MAX_OPS: u32 = 16;

/// Where the data of the first WRITE begins and how long it claims to be, in bytes from the start of an RPC CALL
/// record (without its record mark), given the first bytes of that record.
///
/// `None` when the record is something else, when the operations before WRITE are not among those whose arguments can
/// be skipped easily, when it is protected by RPCSEC_GSS, or when the prefix ends too early.
pub fn write_payload_offset(prefix: &[u8]) -> Option<(usize, usize)> {
    let mut c = Cursor { buf: prefix, pos: 4 };
    c.expect(0)?; // CALL
    c.expect(RPC_VERSION)?;
    c.expect(NFS_PROGRAM)?;
    c.expect(VERSION)?;
    c.expect(PROC_COMPOUND)?;
    if c.u32()? == Flavor::RPCSEC_GSS.0 {
        return None;
    }
    c.opaque(MAX_AUTH_BYTES)?;
    c.u32()?;
    c.opaque(MAX_AUTH_BYTES)?;
    c.opaque(usize::MAX)?; // tag
    c.u32()?; // minorversion
    let count = c.u32()?.min(MAX_OPS);
    for _ in 0..count {
        match OpNum(c.u32()?) {
            OpNum::WRITE => {
                c.skip(16 + 8 + 4)?; // stateid, offset, stable
                return c.data();
            }
            OpNum::SEQUENCE => c.skip(16 + 4 * 4)?,
            OpNum::PUTFH | OpNum::LOOKUP => c.opaque(usize::MAX)?,
            OpNum::PUTROOTFH | OpNum::PUTPUBFH | OpNum::GETFH | OpNum::SAVEFH | OpNum::RESTOREFH | OpNum::LOOKUPP => {}
            OpNum::ACCESS => c.skip(4)?,
            OpNum::GETATTR => c.bitmap()?,
            OpNum::VERIFY | OpNum::NVERIFY => c.fattr()?,
            _ => return None,
        }
    }
    None
}

/// Where the data of the first READ (or the first data of a READ_PLUS) begins and how long it claims to be, in bytes
/// from the start of an RPC REPLY record (without its record mark), given the first bytes of that record.
///
/// The reply does not say which program it belongs to: call this only for replies to COMPOUNDs with a READ.
pub fn read_payload_offset(prefix: &[u8]) -> Option<(usize, usize)> {
    let mut c = Cursor { buf: prefix, pos: 4 };
    c.expect(1)?; // REPLY
    c.expect(0)?; // MSG_ACCEPTED
    if c.u32()? == Flavor::RPCSEC_GSS.0 {
        return None;
    }
    c.opaque(MAX_AUTH_BYTES)?;
    c.expect(0)?; // SUCCESS
    c.u32()?; // status of the COMPOUND: a failure after the READ leaves its data
    c.opaque(usize::MAX)?; // tag
    let count = c.u32()?.min(MAX_OPS);
    for _ in 0..count {
        let op = OpNum(c.u32()?);
        c.expect(Status::OK.0)?;
        match op {
            OpNum::READ => {
                c.u32()?; // eof
                return c.data();
            }
            OpNum::READ_PLUS => {
                c.u32()?; // eof
                if c.u32()? == 0 {
                    return None;
                }
                c.expect(super::ops::DataContent::DATA.0)?;
                c.skip(8)?;
                return c.data();
            }
            OpNum::SEQUENCE => c.skip(16 + 5 * 4)?,
            OpNum::PUTFH
            | OpNum::PUTROOTFH
            | OpNum::PUTPUBFH
            | OpNum::SAVEFH
            | OpNum::RESTOREFH
            | OpNum::LOOKUP
            | OpNum::LOOKUPP
            | OpNum::VERIFY
            | OpNum::NVERIFY => {}
            OpNum::GETFH => c.opaque(usize::MAX)?,
            OpNum::ACCESS => c.skip(8)?,
            OpNum::GETATTR => c.fattr()?,
            _ => return None,
        }
    }
    None
}

/// A reader over borrowed bytes; unlike `Reader` it does not need to own the prefix.
struct Cursor<'a> {
    buf: &'a [u8],
    pos: usize,
}

impl Cursor<'_> {
    fn u32(&mut self) -> Option<u32> {
        let bytes = self.buf.get(self.pos..)?.first_chunk::<4>()?;
        self.pos += 4;
        Some(u32::from_be_bytes(*bytes))
    }

    fn expect(&mut self, value: u32) -> Option<()> {
        (self.u32()? == value).then_some(())
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        let pos = self.pos.checked_add(len)?;
        (pos <= self.buf.len()).then(|| self.pos = pos)
    }

    fn opaque(&mut self, max: usize) -> Option<()> {
        let len = self.u32()? as usize;
        if len > max {
            return None;
        }
        self.skip(len)?;
        self.skip(padding(len))
    }

    fn bitmap(&mut self) -> Option<()> {
        let words = self.u32()? as usize;
        self.skip(words.checked_mul(4)?)
    }

    fn fattr(&mut self) -> Option<()> {
        self.bitmap()?;
        self.opaque(usize::MAX)
    }

    /// Position and length of the opaque data whose length comes next.
    fn data(&mut self) -> Option<(usize, usize)> {
        let len = self.u32()? as usize;
        Some((self.pos, len))
    }
}
