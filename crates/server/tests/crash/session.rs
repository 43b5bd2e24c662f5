//! A client's connection and session, as far as the power lets them live.

use crate::power::Life;
use dhow_proto::v4::cb::CbArgOp;
use dhow_proto::v4::ops::{CreateSessionOk, ReclaimCompleteArgs};
use dhow_proto::v4::{ArgOp, ClientId, CompoundRes, ResOp, Status, Verifier};
use dhow_testkit::Power;
use dhow_testkit::wire::{ClientOptions, Session, Wire, compound_bytes};
use std::sync::Arc;
use std::time::Duration;

/// The power went, or the connection: nothing that is said later counts.
#[derive(Debug)]
pub struct Gone;

pub const COMPLETE: ArgOp = ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });

/// A client ID and a session.
pub struct Conn {
    wire: Wire,
    power: Arc<Power>,
    pub id: ClientId,
    session: Session,
}

async fn compound(wire: &mut Wire, power: &Power, ops: &[ArgOp]) -> Result<CompoundRes, Gone> {
    let xid = wire.xid();
    let cred = wire.cred.to_opaque().expect("a valid credential");
    let args = compound_bytes(2, ops);
    let call = dhow_testkit::wire::call_bytes(xid, cred, dhow_proto::NFS_PROGRAM, 4, 1, &args);
    wire.send_record(&call).await.map_err(|_| Gone)?;
    let reply = wire.try_reply(xid).await.ok_or(Gone)?;
    // What the server said in the instant in which the power went is not an acknowledgement.
    if power.is_off() { Err(Gone) } else { Ok(reply.compound(2)) }
}

impl Conn {
    /// EXCHANGE_ID and CREATE_SESSION.
    pub async fn open(life: &Life, name: &str, incarnation: u64) -> Result<Self, Gone> {
        let mut wire = life.connect();
        let power = life.power.clone();
        let mut options = ClientOptions { verifier: Verifier(incarnation.to_be_bytes()), ..ClientOptions::named(name) };
        // One slot is all that is used. Callbacks are answered as they come, and looked at later.
        options.fore.max_requests = 4;
        loop {
            let res = compound(&mut wire, &power, &[options.exchange_id()]).await?;
            let (id, sequence) = match res.results.into_iter().next() {
                Some(ResOp::ExchangeId(Ok(ok))) => (ok.client_id, ok.sequence_id),
                other => panic!("EXCHANGE_ID: {other:?}"),
            };
            let res = compound(&mut wire, &power, &[options.create_session(id, sequence)]).await?;
            match res.results.into_iter().next() {
                Some(ResOp::CreateSession(Ok(granted))) => {
                    let session = Session { next: vec![1; slots(&granted)], granted };
                    return Ok(Self { wire, power, id, session });
                }
                // The record of the incarnation before is just being removed.
                Some(ResOp::CreateSession(Err(Status::DELAY))) => tokio::time::sleep(Duration::from_secs(1)).await,
                other => panic!("CREATE_SESSION: {other:?}"),
            }
        }
    }

    /// Runs operations in the session; the results come without that of SEQUENCE, and are cut at the first failure.
    pub async fn run(&mut self, ops: &[ArgOp]) -> Result<(Status, Vec<ResOp>), Gone> {
        let all: Vec<ArgOp> =
            std::iter::once(ArgOp::Sequence(self.session.sequence(0, true))).chain(ops.iter().cloned()).collect();
        let res = compound(&mut self.wire, &self.power, &all).await?;
        Ok((res.status, res.results.into_iter().skip(1).collect()))
    }

    /// The operations of the callbacks that came since the last look.
    pub fn called(&mut self) -> Vec<CbArgOp> {
        let calls = self.wire.callbacks.drain(..).filter(|c| c.header.body.as_ref().is_some_and(|b| b.proc != 0));
        calls.filter_map(|c| c.compound().ops.pop()).collect()
    }

    pub async fn status(&mut self, ops: &[ArgOp]) -> Result<Status, Gone> {
        Ok(self.run(ops).await?.0)
    }
}

fn slots(granted: &CreateSessionOk) -> usize {
    granted.fore_chan.max_requests as usize
}
