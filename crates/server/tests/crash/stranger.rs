//! A client that the server does not know from before: it looks whether grace is kept, and ended in time.

use crate::actor::{EARLY, LATE, opened};
use crate::ledger::Ledger;
use crate::power::Life;
use crate::session::{COMPLETE, Conn, Gone};
use dhow_proto::v4::ops::{OpenClaim, OpenHow, share};
use dhow_proto::v4::{DelegationType, FileHandle, Stateid, Status};
use dhow_testkit::Dice;
use dhow_testkit::wire::op;
use std::cell::RefCell;
use std::time::Duration;

pub struct Stranger<'a> {
    pub life: &'a Life,
    pub ledger: &'a RefCell<Ledger>,
    pub dice: Dice,
    pub name: String,
    /// A file that nobody else opens.
    pub file: FileHandle,
    /// It may have got a record: it never comes again.
    pub recorded: bool,
}

impl Stranger<'_> {
    pub async fn live(&mut self, looks: u64) -> Result<(), Gone> {
        let mut conn = Conn::open(self.life, &self.name, 1).await?;
        assert_eq!(conn.status(&[COMPLETE]).await?, Status::OK);
        for _ in 0..looks {
            self.look(&mut conn).await?;
            tokio::time::sleep(Duration::from_millis(self.dice.roll(6000))).await;
        }
        Ok(())
    }

    /// Whether grace must be kept now.
    fn kept(&self) -> bool {
        self.life.began.elapsed() < EARLY && self.ledger.borrow().somebody_reclaims()
    }

    /// Whether it must be over now.
    fn over(&self) -> bool {
        self.ledger.borrow().all_complete() || self.life.began.elapsed() > LATE
    }

    async fn look(&mut self, conn: &mut Conn) -> Result<(), Gone> {
        let put = op::put(&self.file);
        let owner = op::owner(conn.id, "stranger");
        let (kept, over) = (self.kept(), self.over());
        // Under a special stateid: GRACE as long as somebody may reclaim an open that denies it (RFC 8881 9.1.5).
        let status = conn.status(&[put.clone(), op::read(Stateid::ANONYMOUS, 0, 10)]).await?;
        if kept && self.kept() {
            assert_eq!(status, Status::GRACE, "somebody may still reclaim");
            self.ledger.borrow_mut().tally.add("stranger got GRACE");
        }
        if over {
            assert_eq!(status, Status::OK, "nobody may reclaim any more");
            if self.life.began.elapsed() < EARLY {
                self.ledger.borrow_mut().tally.add("grace ended early");
            }
        }
        let reclaim = op::open(
            owner.clone(),
            share::ACCESS_READ | share::WANT_NO_DELEG,
            0,
            OpenHow::NoCreate,
            OpenClaim::Previous(DelegationType::NONE),
        );
        assert_eq!(conn.status(&[put.clone(), reclaim]).await?, Status::NO_GRACE, "a stranger reclaims");
        self.ledger.borrow_mut().tally.add("stranger got NO_GRACE");
        if self.kept() {
            let open = op::open(owner, share::ACCESS_READ | share::WANT_NO_DELEG, 0, OpenHow::NoCreate, OpenClaim::Fh);
            self.recorded = true;
            let (status, results) = conn.run(&[put, open]).await?;
            match opened(&results) {
                Some(_) => assert!(!self.kept(), "a stranger gets an open in grace"),
                None => {
                    assert_eq!(status, Status::GRACE);
                    self.recorded = false;
                }
            }
        }
        Ok(())
    }
}
