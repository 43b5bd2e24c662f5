//! Every decoder on rubbish: random bytes, valid messages that were changed, counts and lengths that lie (case B22).
//! Nothing panics; and since the process may use little memory, a decoder that allocates by a length from the wire dies.
//!
//! `DHOW_FUZZ_ROUNDS` makes it longer, `DHOW_FUZZ_SEED` another.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use dhow_proto::v4::cb::{CbCompoundArgs, CbCompoundRes, CbOffloadArgs};
use dhow_proto::v4::ops::*;
use dhow_proto::v4::{
    ArgOp, Attrs, Bitmap, ByteStrings, CompoundArgs, CompoundHeader, CompoundRes, Fattr, OpNum, PROC_COMPOUND, ResOp,
    Stateid, VERSION, payload,
};
use dhow_rpc::{AuthSys, CallHeader, Credential, OpaqueAuth, RecordReader, ReplyHeader};
use dhow_testkit::wire::{ClientOptions, call_bytes, op};
use dhow_xdr::{Decode, DecodeMax, Encode, Reader};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Address space that the process may take beyond what it starts with. Far above what honest decoding of these inputs
/// needs, far below 2^31 elements of anything.
const MEMORY: u64 = 768 << 20;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n.max(1)
    }
}

fn limit_memory() {
    let used = std::fs::read_to_string("/proc/self/statm").ok();
    let pages: u64 = used.and_then(|s| s.split(' ').next()?.parse().ok()).unwrap_or(0);
    let most = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + MEMORY), maximum: most }).unwrap();
}

/// Decodes as everything that ever comes from a peer; what decodes is written and read again to the same value.
fn decode_all(bytes: &Bytes) {
    fn one<T: Decode + Encode + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
        let mut r = Reader::new(bytes.clone());
        if let Ok(value) = T::decode(&mut r) {
            let again = T::from_bytes(value.to_bytes());
            assert_eq!(again.as_ref(), Ok(&value), "written and read again");
            drop(format!("{value:?}"));
        }
    }
    one::<CallHeader>(bytes);
    one::<ReplyHeader>(bytes);
    one::<OpaqueAuth>(bytes);
    one::<AuthSys>(bytes);
    one::<CompoundHeader>(bytes);
    one::<CompoundArgs>(bytes);
    one::<CbCompoundArgs>(bytes);
    one::<CbOffloadArgs>(bytes);
    one::<ArgOp>(bytes);
    one::<Bitmap>(bytes);
    one::<Stateid>(bytes);
    one::<OpenArgs>(bytes);
    one::<OpenOk>(bytes);
    one::<ReaddirOk>(bytes);
    one::<ReadPlusOk>(bytes);
    one::<ExchangeIdArgs>(bytes);
    one::<ExchangeIdOk>(bytes);
    one::<CreateSessionArgs>(bytes);
    one::<TestStateidArgs>(bytes);
    one::<TestStateidOk>(bytes);
    one::<CopyArgs>(bytes);
    one::<CopyNotifyOk>(bytes);
    one::<SecinfoOk>(bytes);
    one::<ListxattrsOk>(bytes);
    // Results: a failure ends them, so they need not be equal when written again.
    let _ = CompoundRes::from_bytes(bytes.clone());
    let _ = CbCompoundRes::from_bytes(bytes.clone());
    let _ = ResOp::decode(&mut Reader::new(bytes.clone()));
    let _ = ByteStrings::decode_max(&mut Reader::new(bytes.clone()), 1000);
    if let Ok(fattr) = Fattr::decode(&mut Reader::new(bytes.clone())) {
        let _ = fattr.parse();
    }
    let _ = Attrs::decode(&mut Reader::new(bytes.clone()));
    if let Ok(auth) = OpaqueAuth::decode(&mut Reader::new(bytes.clone())) {
        let _ = Credential::parse(auth);
    }
    let _ = (payload::write_payload_offset(bytes), payload::read_payload_offset(bytes));
    for num in 0..=80 {
        let _ = ArgOp::decode_body(OpNum(num), &mut Reader::new(bytes.clone()));
    }
    records(bytes);
}

/// The record reader on a stream of these bytes.
fn records(bytes: &Bytes) {
    let mut reader = RecordReader::new(1 << 20);
    let mut rest = &bytes[..];
    loop {
        match reader.next() {
            dhow_rpc::record::Next::Header => {
                let Some((mark, more)) = rest.split_first_chunk::<4>() else { return };
                rest = more;
                if reader.header(*mark).is_err() {
                    return;
                }
            }
            dhow_rpc::record::Next::Data(want) => {
                let n = want.min(rest.len());
                if n == 0 {
                    return;
                }
                reader.received(n);
                rest = &rest[n..];
            }
            dhow_rpc::record::Next::Complete => {
                assert!(reader.len() <= 1 << 20);
                reader.restart();
            }
        }
    }
}

/// Messages as they are.
fn seeds() -> Vec<Bytes> {
    let owner = op::owner(dhow_proto::v4::ClientId(7), "owner");
    let o = ClientOptions::default();
    let ops = vec![
        o.exchange_id(),
        o.create_session(dhow_proto::v4::ClientId(7), 1),
        op::root(),
        op::open_create(owner.clone(), 3, 0, "file", 0o644),
        op::getattr(&[0, 1, 3, 4, 19, 33, 36, 60, 75]),
        op::setattr(Attrs { mode: Some(0o600), owner: Some("0".into()), ..Attrs::default() }),
        op::write(Stateid::CURRENT, 0, dhow_proto::v4::StableHow::UNSTABLE, [7; 600]),
        op::readdir(0, Default::default(), 4096, &[1, 20]),
        op::lock_new(Stateid::CURRENT, owner, dhow_proto::v4::LockType::WRITE, 0, 10),
        op::copy(Stateid::CURRENT, Stateid::CURRENT, (0, 0), 0, true),
        ArgOp::TestStateid(TestStateidArgs { stateids: vec![Stateid::CURRENT; 5] }),
    ];
    let args = CompoundArgs { tag: "tag".into(), minorversion: 2, ops: ops.clone() };
    let entries = (3..20).map(|i| DirEntry {
        cookie: i,
        name: format!("name {i}").into(),
        attrs: Attrs { fileid: Some(i), ..Attrs::default() },
    });
    let res = CompoundRes {
        status: dhow_proto::v4::Status::OK,
        tag: "tag".into(),
        results: vec![
            ResOp::PutRootFh(Ok(())),
            ResOp::Readdir(Ok(ReaddirOk { verifier: Default::default(), entries: entries.collect(), eof: true })),
            ResOp::Read(Ok(ReadOk { eof: false, data: vec![1; 700].into() })),
            ResOp::Getattr(Ok(GetattrOk { attrs: Box::new(Attrs { size: Some(5), ..Attrs::default() }) })),
        ],
    };
    let cred = dhow_testkit::wire::sys(1, 2, &[3, 4, 5]).to_opaque().unwrap();
    let call = call_bytes(1, cred, dhow_proto::NFS_PROGRAM, VERSION, PROC_COMPOUND, &args.to_bytes());
    let mut all = vec![args.to_bytes(), res.to_bytes(), Bytes::from(call.clone())];
    all.push([&dhow_rpc::record_mark(call.len())[..], &call].concat().into());
    all.extend(ops.iter().map(Encode::to_bytes));
    all.extend(ops.iter().map(|o| o.to_bytes().slice(4..)));
    all
}

fn mutate(r: &mut Rng, bytes: &mut Vec<u8>) {
    const LIES: [u32; 12] =
        [0, 1, 2, 0xff, 0x400, 0xffff, 0x1_0000, 0x1_0001, 0x7fff_ffff, 0x8000_0000, 0xffff_fffc, 0xffff_ffff];
    for _ in 0..=r.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = r.below(bytes.len());
        let word = at / 4 * 4;
        match r.below(6) {
            0 => bytes[at] ^= 1 << r.below(8),
            1 | 2 if word + 4 <= bytes.len() => bytes[word..word + 4].copy_from_slice(&LIES[r.below(12)].to_be_bytes()),
            3 => bytes.truncate(at),
            4 => {
                let chunk = bytes[word..(word + 40).min(bytes.len())].to_vec();
                bytes.splice(word..word, chunk);
            }
            _ => bytes[at] = r.next() as u8,
        }
    }
}

#[test]
fn rubbish_is_an_error_and_costs_nothing() {
    let var = |n: &str| std::env::var(n).ok().and_then(|v| v.parse::<u64>().ok());
    let mut r = Rng(var("DHOW_FUZZ_SEED").unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let rounds = var("DHOW_FUZZ_ROUNDS").unwrap_or(20_000);
    limit_memory();
    assert!(Vec::<u8>::new().try_reserve_exact(2 << 30).is_err(), "the limit does not hold");
    let seeds = seeds();
    for seed in &seeds {
        decode_all(seed);
    }
    // Every word of every message replaced by each lie.
    for seed in &seeds {
        for word in 0..(seed.len() / 4).min(120) {
            for lie in [0x7fff_ffff_u32, 0xffff_ffff, 0x1000_0000, 0x1_0000] {
                let mut bytes = seed.to_vec();
                bytes[word * 4..word * 4 + 4].copy_from_slice(&lie.to_be_bytes());
                decode_all(&bytes.into());
            }
        }
    }
    for round in 0..rounds {
        let bytes: Bytes = if round % 4 == 0 {
            let len = r.below(300);
            (0..len).map(|_| if r.below(3) == 0 { 0 } else { r.next() as u8 }).collect::<Vec<u8>>().into()
        } else {
            let mut bytes = seeds[r.below(seeds.len())].to_vec();
            mutate(&mut r, &mut bytes);
            bytes.into()
        };
        decode_all(&bytes);
    }
}
