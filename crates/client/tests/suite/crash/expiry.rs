//! The lease ends while a client is cut off, in virtual time (RFC 8881 sections 8.3, 8.4.3): what nobody wanted is there
//! afterwards, what others got is reported.

use super::power::{LATENCY, LEASE, Machine};
use super::work::rw;
use super::{Dice, connect};
use bytes::Bytes;
use dhow_client::v4::ops::share;
use dhow_client::v4::{StableHow, TO_EOF};
use dhow_client::{Client, Error, File, Lost, OpenOptions};
use dhow_testkit::fault::Call;
use std::sync::Arc;
use std::time::Duration;

async fn two() -> (Arc<Machine>, Client, Client) {
    let machine = Machine::new(dhow_testkit::Dice::new(1));
    machine.boot(u64::MAX).await.unwrap();
    let mut dice = Dice::new(7);
    let (a, b) = (connect(&machine, 0, &mut dice).await, connect(&machine, 1, &mut dice).await);
    (machine, a, b)
}

async fn write(file: &File) -> Result<(), Error> {
    file.write_all_at(0, Bytes::from_static(b"x"), StableHow::FILE_SYNC).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_courteous_server_keeps_what_nobody_wants() {
    for late in [false, true] {
        let (machine, a, b) = two().await;
        let file = a.fs().open("f", &rw()).await.unwrap();
        assert!(file.try_lock(true, 0, 10).await.unwrap().is_none());
        machine.silence(0);
        tokio::time::sleep(3 * LEASE).await;
        machine.heal(0, late);
        write(&file).await.unwrap();
        let theirs = b.fs().open("f", &rw()).await.unwrap();
        assert!(theirs.try_lock(true, 0, 10).await.unwrap().is_some());
        file.unlock(0, TO_EOF).await.unwrap();
        assert!(theirs.try_lock(true, 0, 10).await.unwrap().is_none());
        theirs.close().await.unwrap();
        file.close().await.unwrap();
        a.close().await.unwrap();
        b.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_got_meanwhile_is_reported() {
    for late in [false, true] {
        let (machine, a, b) = two().await;
        let locked = a.fs().open("locked", &rw()).await.unwrap();
        assert!(locked.try_lock(true, 0, 10).await.unwrap().is_none());
        let denying = a.fs().open("denying", &rw().deny(share::DENY_WRITE)).await.unwrap();
        let plain = a.fs().open("plain", &rw()).await.unwrap();
        write(&plain).await.unwrap();
        machine.silence(0);
        // A write that is under way when the lease ends must not be done under a lock of somebody else.
        let (locked, under_way) = {
            let locked = Arc::new(locked);
            let file = locked.clone();
            (
                locked,
                tokio::spawn(
                    async move { file.write_all_at(0, Bytes::from_static(b"late"), StableHow::FILE_SYNC).await },
                ),
            )
        };
        tokio::time::sleep(2 * LEASE).await;
        let theirs = b.fs().open("locked", &rw()).await.unwrap();
        assert!(theirs.try_lock(true, 0, 10).await.unwrap().is_none(), "its lease has ended");
        theirs.write_all_at(0, Bytes::from_static(b"mine"), StableHow::FILE_SYNC).await.unwrap();
        machine.heal(0, late);
        let refused = under_way.await.unwrap();
        assert!(matches!(refused, Err(Error::StateLost { what: Lost::Lock, .. })), "{refused:?}");
        assert_eq!(theirs.read_at(0, 10).await.unwrap().data, "mine");
        let e = locked.unlock(0, 10).await.unwrap_err();
        assert!(matches!(e, Error::StateLost { what: Lost::Lock, .. }), "{e}");
        assert!(e.to_string().starts_with("a byte-range lock of this open file is lost"), "{e}");
        let e = write(&denying).await.unwrap_err();
        assert!(matches!(e, Error::StateLost { what: Lost::Share, .. }), "{e}");
        // What promises nothing more goes on.
        write(&plain).await.unwrap();
        for (file, of) in [(Arc::into_inner(locked).unwrap(), Lost::Lock), (denying, Lost::Share)] {
            let closed = file.close().await;
            assert!(matches!(closed, Err(Error::StateLost { what, .. }) if what == of), "{closed:?}");
        }
        for file in [plain, theirs] {
            file.close().await.unwrap();
        }
        a.close().await.unwrap();
        b.close().await.unwrap();
    }
}

/// A lock that was granted long before its answer came, and taken since, is not believed.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_older_than_the_lease_is_looked_into() {
    let (machine, a, b) = two().await;
    let file = Arc::new(a.fs().open("f", &rw()).await.unwrap());
    let theirs = b.fs().open("f", &rw()).await.unwrap();
    let asked = {
        let file = file.clone();
        tokio::spawn(async move { file.try_lock(true, 0, 10).await })
    };
    // The request gets through, its answer does not.
    tokio::time::sleep(LATENCY * 3 / 2).await;
    machine.silence(0);
    tokio::time::sleep(2 * LEASE).await;
    assert!(theirs.try_lock(true, 0, 10).await.unwrap().is_none(), "its lease has ended");
    machine.heal(0, true);
    match asked.await.unwrap() {
        Ok(Some(_)) | Err(Error::StateLost { what: Lost::Lock, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(file);
    theirs.close().await.unwrap();
}

/// Opens and locks whose callers have gone away when they are granted are given back.
#[tokio::test(start_paused = true)]
async fn what_is_granted_to_nobody_is_given_back() {
    let (machine, a, b) = two().await;
    b.fs().open("f", &rw()).await.unwrap().close().await.unwrap();
    let gate = machine.fault().hold(Call::Open);
    let fs = a.fs();
    let options = OpenOptions::read_write().deny(share::DENY_BOTH);
    let gone = tokio::time::timeout(Duration::from_secs(1), fs.open("f", &options)).await;
    assert!(gone.is_err());
    gate.open();
    machine.fault().clear(Call::Open);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let theirs = b.fs().open("f", &rw()).await.expect("nobody denies it");

    // The answer to the lock is lost for longer than the caller waits: it can be unlocked all the same.
    let file = a.fs().open("f", &rw()).await.unwrap();
    let lock = async {
        let cut = async {
            tokio::time::sleep(LATENCY * 3 / 2).await;
            machine.silence(0);
        };
        tokio::join!(file.try_lock(true, 0, 10), cut).0
    };
    assert!(tokio::time::timeout(Duration::from_secs(1), lock).await.is_err());
    machine.heal(0, true);
    file.unlock(0, TO_EOF).await.unwrap();
    assert!(theirs.try_lock(true, 0, 10).await.unwrap().is_none());
    theirs.close().await.unwrap();
    file.close().await.unwrap();
    a.close().await.unwrap();
    b.close().await.unwrap();
}
