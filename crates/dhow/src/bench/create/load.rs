//! Writers: closed loops that make one call after the other in one directory.

use super::Op;
use super::site::At;
use crate::exit::{Failure, Outcome};
use bytes::Bytes;
use dhow_client::v4::FileHandle;
use dhow_client::{Client, Fs, PutOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Round trips before anything counts: sessions are made, windows of TCP opened.
const WARM_TRIPS: u32 = 10;
/// And so long at least.
const WARM: Duration = Duration::from_secs(1);
/// Bytes of a file that `put` writes.
const PUT: usize = 4096;
/// How often the time that counts is prolonged where nothing was done in it.
const LONGER: u32 = 20;

/// What one operation by so many writers came to.
#[derive(Clone, Debug)]
pub struct Measured {
    pub per_second: f64,
    pub calls_per_op: f64,
    pub p50: Duration,
    pub p99: Duration,
    pub slots: u32,
    pub sessions: usize,
}

/// Writers in one directory.
pub struct Load {
    client: Client,
    fs: Fs,
    dir: FileHandle,
    writers: u32,
    warm: Duration,
    time: Duration,
}

/// What a writer did: when each of its operations began and ended, and how many there were before.
struct Done {
    writer: u32,
    times: Vec<(Instant, Instant)>,
    /// It had nothing left to do.
    exhausted: bool,
}

impl Load {
    /// Makes the directory `name` below `root`.
    pub fn new(at: &At<'_>, root: &[u8], name: &str, writers: u32, rtt: Duration, time: Duration) -> Outcome<Self> {
        let path = [root, b"/", name.as_bytes()].concat();
        let fs = at.fs();
        let made = at.block_on(async { fs.mkdir(&path[..], 0o755).await })?;
        let dir = made.map_err(Failure::failed)?.fh;
        Ok(Self { client: at.client().clone(), fs, dir, writers, warm: WARM + rtt * WARM_TRIPS, time })
    }

    /// Measures `ops` one after the other. What `remove` removes is what `create` made, which is made for it if nobody
    /// asked for that.
    pub async fn all(self, ops: &[Op]) -> Outcome<Vec<(Op, Measured)>> {
        let mut out = Vec::new();
        let mut made: Option<Vec<u64>> = None;
        for &op in ops {
            if op == Op::Remove && made.is_none() {
                made = Some(self.measure(Op::Create, &[]).await?.1);
            }
            let limits = match op {
                Op::Remove => self.top_up(made.take().unwrap_or_default()).await?,
                _ => Vec::new(),
            };
            let (measured, done) = self.measure(op, &limits).await?;
            if op == Op::Create {
                made = Some(done);
            }
            out.push((op, measured));
        }
        Ok(out)
    }

    /// Returns also how many each writer did in all. `limits`: how many each has to do at most.
    async fn measure(&self, op: Op, limits: &[u64]) -> Outcome<(Measured, Vec<u64>)> {
        if op == Op::Rename {
            self.prepare_renames().await?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let finished = Arc::new(AtomicU64::new(0));
        let before = self.client.counters().snapshot();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for writer in 0..self.writers {
            let limit = limits.get(writer as usize).copied();
            let (stop, finished) = (stop.clone(), finished.clone());
            tasks.spawn(write(self.fs.clone(), self.dir.clone(), op, writer, limit, stop, finished));
        }
        let (begin, mut end) = (start + self.warm, start + self.warm + self.time);
        let mut done: Vec<Done> = Vec::new();
        let over = tokio::time::sleep_until(begin.into());
        tokio::pin!(over);
        let (mut at_begin, mut longer) = (None, 0);
        // Failures end it early. A disk so slow that nothing was done in the time is given more of it.
        loop {
            tokio::select! {
                () = &mut over, if !stop.load(Ordering::Relaxed) => {
                    let now = finished.load(Ordering::Relaxed);
                    match at_begin {
                        None => at_begin = Some(now),
                        Some(before) if before == now && longer < LONGER => {
                            longer += 1;
                            end = Instant::now() + self.time;
                        }
                        Some(_) => stop.store(true, Ordering::Relaxed),
                    }
                    over.as_mut().reset(end.into());
                }
                finished = tasks.join_next() => match finished {
                    Some(finished) => done.push(finished.map_err(Failure::failed)??),
                    None => break,
                },
            }
        }
        let calls = self.client.counters().snapshot().since(&before).calls;
        // A writer that ran out of work works no more: what was measured then is of fewer writers.
        let out = done.iter().filter(|d| d.exhausted).filter_map(|d| d.times.last()).map(|t| t.1).min();
        let end = out.map_or(end, |out| out.min(end));
        // Who runs out has made files before, over the same sessions: a third of the time is warm-up enough.
        let third = start + end.saturating_duration_since(start) / 3;
        let begin = if out.is_some() { begin.min(third) } else { begin };
        let mut count = vec![0; self.writers as usize];
        let (mut all, mut times) = (0_u64, Vec::new());
        for writer in &done {
            all += writer.times.len() as u64;
            if let Some(count) = count.get_mut(writer.writer as usize) {
                *count = writer.times.len() as u64;
            }
            let inside = writer.times.iter().filter(|(_, at)| *at > begin && *at <= end);
            times.extend(inside.map(|(from, to)| *to - *from));
        }
        times.sort();
        let seconds = end.saturating_duration_since(begin).as_secs_f64();
        if times.is_empty() || seconds <= 0.0 {
            return Err(nothing_done());
        }
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
        let info = self.client.session_info().await.map_err(Failure::failed)?;
        let measured = Measured {
            per_second: times.len() as f64 / seconds,
            calls_per_op: calls as f64 / all.max(1) as f64,
            p50: at(0.5),
            p99: at(0.99),
            slots: info.slots,
            sessions: info.sessions,
        };
        Ok((measured, count))
    }

    /// Makes more files for writers that made few, so that none runs out while the others remove theirs: a quarter more
    /// for each than the busiest one made. Returns how many each has.
    async fn top_up(&self, made: Vec<u64>) -> Outcome<Vec<u64>> {
        let most = made.iter().copied().max().unwrap_or(0);
        let target = most + most / 4 + 2;
        let mut tasks = JoinSet::new();
        for (writer, made) in (0_u32..).zip(&made) {
            let (fs, dir, made) = (self.fs.clone(), self.dir.clone(), *made);
            tasks.spawn(async move {
                for n in made..target {
                    one(&fs, &dir, Op::Create, writer, n, &Bytes::new()).await?;
                }
                Ok::<_, dhow_client::Error>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(Failure::failed)?.map_err(Failure::failed)?;
        }
        Ok(vec![target; made.len()])
    }

    async fn prepare_renames(&self) -> Outcome {
        let mut tasks = JoinSet::new();
        for writer in 0..self.writers {
            let (fs, dir) = (self.fs.clone(), self.dir.clone());
            tasks.spawn(async move { fs.make_file((&dir, format!("r{writer}-0")), 0o644, false).await });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(Failure::failed)?.map_err(Failure::failed)?;
        }
        Ok(())
    }
}

/// There is nothing to be measured.
pub fn nothing_done() -> Failure {
    Failure::failed("nothing was done in the time that counts; allow more --seconds")
}

async fn write(
    fs: Fs,
    dir: FileHandle,
    op: Op,
    writer: u32,
    limit: Option<u64>,
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicU64>,
) -> Outcome<Done> {
    let mut times = Vec::new();
    let data = Bytes::from(vec![0x5a; if op == Op::Put { PUT } else { 0 }]);
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) && limit.is_none_or(|limit| n < limit) {
        let start = Instant::now();
        one(&fs, &dir, op, writer, n, &data).await.map_err(Failure::failed)?;
        times.push((start, Instant::now()));
        finished.fetch_add(1, Ordering::Relaxed);
        n += 1;
    }
    Ok(Done { writer, times, exhausted: limit.is_some_and(|limit| n >= limit) })
}

/// The `n`th operation of a writer.
pub async fn one(fs: &Fs, dir: &FileHandle, op: Op, writer: u32, n: u64, data: &Bytes) -> dhow_client::Result<()> {
    match op {
        Op::Create => fs.make_file((dir, format!("c{writer}-{n}")), 0o644, true).await.map(drop),
        Op::Put => {
            let via = Some(Bytes::from(format!(".p{writer}-{n}")));
            let options = PutOptions { via, ..PutOptions::default() };
            fs.put((dir, format!("p{writer}-{n}")), data.clone(), &options).await.map(drop)
        }
        Op::Mkdir => fs.mkdir((dir, format!("m{writer}-{n}")), 0o755).await.map(drop),
        Op::Rename => {
            let to = n + 1;
            fs.rename((dir, format!("r{writer}-{n}")), (dir, format!("r{writer}-{to}"))).await
        }
        Op::Remove => fs.remove((dir, format!("c{writer}-{n}"))).await,
    }
}
